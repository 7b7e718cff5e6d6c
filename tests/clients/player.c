/* A worker that schedules, moves, cancels and receives at random, and prints its account as JSON.
 *
 *     player DAEMON TIMERS SEED FOREIGN_ID
 *
 * A timer's cookie is its number. Its lower bound is taken before the call that sets it, so what is
 * received before that is early, whatever the record says.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wheeld.h>

#define MS 1000000ll
#define MOST 200000

static struct {
    uint64_t id;
    int64_t due;
    bool cancelled, received;
} timers[MOST];
static uint64_t seed, scheduled, cancelled, moved, received, early, twice, strange;

static void check(int result)
{
    if (result == WHEELD_OK)
        return;
    fprintf(stderr, "%s: %s\n", wheeld_result_text(result), wheeld_message());
    exit(1);
}

/* OK or over; anything else ends the program. */
static bool is_done(int result)
{
    if (result != WHEELD_OVER)
        check(result);
    return result == WHEELD_OK;
}

static uint64_t draw(uint64_t below)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed % below;
}

static void book(const wheeld_event *e, int64_t now)
{
    uint64_t n = e->cookie;
    uint32_t twin;
    memcpy(&twin, e->payload, e->payload_size == 4 ? 4 : 0);
    if (n >= scheduled || e->id != timers[n].id || e->payload_size != 4 || twin != (uint32_t)n ||
        timers[n].cancelled) {
        strange++;
        return;
    }
    twice += timers[n].received;
    early += e->fired_ns < e->deadline_ns || now < timers[n].due;
    timers[n].received = true;
    received++;
}

static size_t receive(wheeld *w, int64_t timeout)
{
    wheeld_event events[64];
    size_t got;
    check(wheeld_poll(w, timeout, events, 64, &got));
    int64_t now = wheeld_now_ns(w);
    for (size_t i = 0; i < got; i++)
        book(&events[i], now);
    return got;
}

static void act(wheeld *w)
{
    uint32_t twin = (uint32_t)scheduled;
    int64_t delay = (int64_t)draw(200 * MS), now = wheeld_now_ns(w);
    wheeld_timer timer = {
        .delay_ns = delay, .cookie = scheduled, .payload = &twin, .payload_size = 4};
    check(wheeld_schedule_timer(w, &timer, &timers[scheduled].id));
    timers[scheduled++].due = now + delay;
    uint64_t n = draw(scheduled);
    if (draw(3) == 0 && is_done(wheeld_cancel(w, timers[n].id)))
        timers[n].cancelled = true, cancelled++;
    n = draw(scheduled);
    delay = (int64_t)draw(200 * MS), now = wheeld_now_ns(w);
    if (draw(3) == 0 && is_done(wheeld_reschedule(w, timers[n].id, delay)))
        timers[n].due = now + delay, moved++;
}

int main(int argc, char **argv)
{
    wheeld *w;
    const wheeld_options options = {.worker = "player"};
    uint64_t most = argc == 5 ? strtoull(argv[2], NULL, 10) : 0;
    if (most == 0 || most > MOST)
        return 2;
    seed = strtoull(argv[3], NULL, 10) | 1;
    check(wheeld_connect(argv[1], &options, &w));
    bool foreign = is_done(wheeld_cancel(w, strtoull(argv[4], NULL, 10)));
    while (scheduled < most) {
        act(w);
        if (scheduled % 50 == 0)
            receive(w, 0);
    }
    int64_t give_up = wheeld_now_ns(w) + 60000 * MS;
    while (received < scheduled - cancelled && wheeld_now_ns(w) < give_up)
        receive(w, 1000 * MS);
    receive(w, 50 * MS); /* there is no more */
    wheeld_close(w);
    printf("{\"scheduled\": %" PRIu64 ", \"cancelled\": %" PRIu64 ", \"moved\": %" PRIu64
           ", \"received\": %" PRIu64 ", \"early\": %" PRIu64 ", \"twice\": %" PRIu64
           ", \"strange\": %" PRIu64 ", \"foreign\": %d}\n",
           scheduled, cancelled, moved, received, early, twice, strange, foreign);
    return 0;
}
