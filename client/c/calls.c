/* Calls: schedule, cancel, reschedule, poll. Each is one of the core's. */
#include "session.h"

#include <poll.h>
#include <string.h>

#include "wheeld/worker/calls.h"

/* Why a call may not begin. */
static int explain(const wheeld *w)
{
    if (!*w->here)
        return fail(WHEELD_FORKED,
                    "this client belongs to the parent process; connect in the child");
    if (w->ended)
        return fail(w->ended, "%s", w->ended_because);
    if (w->core.fds_lost)
        return fail(WHEELD_NOT_RUNNING, "the descriptors of this client were closed by other code; "
                                        "close it, and connect again");
    if (wh_load_acquire(&w->core.wheel->daemon_state) == 1) /* pairs: daemon-state */
        return fail(WHEELD_NOT_RUNNING,
                    "the daemon no longer serves this worker, which it took for "
                    "dead; close the client, and connect again");
    return fail(WHEELD_NOT_RUNNING, "the wheeld daemon in %s has stopped", w->path);
}

static inline int begin(const wheeld *w)
{
    if (wh_likely(*w->here && !w->ended && wh_client_has_row(&w->core) &&
                  wh_load_acquire(&w->core.wheel->daemon_state) == 1)) /* pairs: daemon-state */
        return WHEELD_OK;
    return explain(w);
}

/* The result for how a call of the core has ended. */
static int result_of(const wheeld *w, enum wh_call call, uint64_t id)
{
    switch (call) {
    case WH_CALL_OK:
        return WHEELD_OK;
    case WH_CALL_OVER:
        return fail(WHEELD_OVER, "timer %llu has fired or was cancelled", (unsigned long long)id);
    case WH_CALL_WHEEL_FULL:
        return fail(WHEELD_FULL, w->core.unanswered
                                     ? "no slot is free, and the clock has not answered yet "
                                       "whether there are more; try again in a moment"
                                     : "no slot is free; cancel or poll, or start wheeld with a "
                                       "larger --capacity");
    case WH_CALL_HEAP_FULL:
        return fail(WHEELD_FULL, w->core.unanswered
                                     ? "the payload heap has no room, and the clock has not "
                                       "answered yet whether there is more; try again in a moment"
                                     : "the payload heap is full; cancel or poll, or start wheeld "
                                       "with a larger --payload-heap");
    case WH_CALL_DETACHED_FULL:
        return fail(WHEELD_FULL, "as many detached timers are pending as may be "
                                 "(--detached-capacity); cancel some");
    case WH_CALL_OVER_QUOTA:
        return fail(WHEELD_FULL,
                    "this worker holds %llu slots, and may hold %llu "
                    "(--max-per-worker); cancel or poll",
                    (unsigned long long)w->core.quota.held, (unsigned long long)w->core.quota.most);
    default:
        return fail(WHEELD_NOT_RUNNING,
                    "the clock process has not drained this worker's ring for "
                    "%d s; see `wheeld status`",
                    WH_ROOM_SECONDS);
    }
}

static int check_delay(const char *what, int64_t ns)
{
    if (ns >= 0)
        return WHEELD_OK;
    return fail(WHEELD_INVALID, "%s is %lld ns; expected 0 or more", what, (long long)ns);
}

int wheeld_schedule_timer(wheeld *w, const wheeld_timer *timer, uint64_t *id)
{
    int may = begin(w);
    if (may != WHEELD_OK || (may = check_delay("delay_ns", timer->delay_ns)) != WHEELD_OK ||
        (may = check_delay("interval_ns", timer->interval_ns)) != WHEELD_OK)
        return may;
    if (timer->payload_size > wh_client_most_payload(&w->core))
        return fail(WHEELD_INVALID,
                    "the payload has %u bytes; this wheel holds %u per timer "
                    "(wheeld start --max-payload, --payload-bytes)",
                    timer->payload_size, wh_client_most_payload(&w->core));
    if (timer->payload_size && timer->payload == NULL)
        return fail(WHEELD_INVALID, "payload is NULL, and payload_size %u", timer->payload_size);
    int64_t now = wh_client_now(&w->core);
    wh_request r = {.deadline = wh_time_add(now, timer->delay_ns),
                    .interval = timer->interval_ns,
                    .cookie = timer->cookie,
                    .payload = timer->payload,
                    .payload_size = timer->payload_size};
    wh_request_made(&r, now);
    return result_of(w, wh_call_schedule(&w->core, &r, r.deadline, true, id), 0);
}

int wheeld_schedule(wheeld *w, int64_t delay_ns, uint64_t cookie, uint64_t *id)
{
    wheeld_timer timer = {.delay_ns = delay_ns, .cookie = cookie};
    return wheeld_schedule_timer(w, &timer, id);
}

int wheeld_cancel(wheeld *w, uint64_t id)
{
    int may = begin(w);
    return may ? may : result_of(w, wh_call_cancel(&w->core, id, true), id);
}

int wheeld_reschedule(wheeld *w, uint64_t id, int64_t delay_ns)
{
    int may = begin(w);
    if (may != WHEELD_OK || (may = check_delay("delay_ns", delay_ns)) != WHEELD_OK)
        return may;
    return result_of(w, wh_call_reschedule(&w->core, id, delay_ns, true), id);
}

/* -- poll -------------------------------------------------------------------------------------- */

/* The events that are here now. */
static size_t take(wheeld *w, wheeld_event *events, size_t most)
{
    uint32_t bytes = wh_event_bytes(&w->core);
    bool more;
    most = most < MOST_EVENTS ? most : MOST_EVENTS;
    session_forget_payloads(w);
    size_t got = wh_call_poll(&w->core, w->bell.number, w->events, most, w->watched, &more);
    if (more)
        wh_fd_ring(&w->bell); /* it must be readable */
    for (size_t i = 0, arrival = 0; i < got; i++) {
        wh_completion record;
        uint32_t size; /* as wide as that and the flags */
        memcpy(&record, w->events + i * bytes, sizeof record);
        memcpy(&size, &record.payload_size, sizeof size);
        const char *payload = w->events + i * bytes + sizeof record;
        if (size > w->core.payload_bytes) { /* they came in the order of the events */
            while (w->arrivals[arrival].id != record.id)
                arrival++;
            payload = w->arrivals[arrival++].bytes;
        }
        events[i] = (wheeld_event){.id = record.id,
                                   .cookie = record.cookie,
                                   .deadline_ns = record.deadline,
                                   .fired_ns = record.fired,
                                   .missed = record.missed,
                                   .payload_size = size,
                                   .payload = payload};
    }
    return got;
}

/* Sleep until rung, or `until`, or until there is something to look after. False: a signal handler
 * has run. */
static bool sleep_until(wheeld *w, int64_t until)
{
    wh_client *c = &w->core;
    struct pollfd fds[2] = {{.fd = w->bell.number, .events = POLLIN},
                            {.fd = w->control->fd, .events = POLLRDHUP}};
    int64_t now = wh_thread_now(), unheard = wh_client_unheard_at(c);
    if (now >= unheard)
        wh_client_report_unheard(c, now);
    else
        until = unheard < until ? unheard : until;
    if (w->lost_at) {
        fds[1] = (struct pollfd){.fd = w->attempt ? w->attempt->fd : -1, .events = POLLIN};
        until = now + 20000000 < until ? now + 20000000 : until;
    }
    if (!wh_client_may_sleep(c))
        return true;
    int64_t rest = until > now ? until - now : 0;
    struct timespec timeout = {rest / 1000000000, rest % 1000000000};
    int polled = ppoll(fds, 2, &timeout, NULL);
    if (polled > 0 && fds[1].revents && !w->lost_at)
        w->look_at = 0;
    return polled >= 0;
}

int wheeld_poll(wheeld *w, int64_t timeout_ns, wheeld_event *events, size_t most, size_t *got)
{
    int64_t until = timeout_ns < 0    ? INT64_MAX
                    : timeout_ns == 0 ? 0
                                      : wh_time_add(wh_thread_now(), timeout_ns);
    for (*got = 0;;) {
        int may = begin(w);
        if (may != WHEELD_OK)
            return may;
        if (!wh_fd_is_ours(&w->bell)) {
            wh_client_lose_fds(&w->core);
            return explain(w);
        }
        if ((*got = take(w, events, most)) || most == 0)
            return WHEELD_OK;
        if ((may = session_look(w)) != WHEELD_OK)
            return w->ended ? explain(w) : may;
        if ((until != INT64_MAX && (until == 0 || wh_thread_now() >= until)) ||
            !sleep_until(w, until))
            return WHEELD_OK;
    }
}

int wheeld_fd(wheeld *w)
{
    if (begin(w) != WHEELD_OK)
        return -1;
    if (!w->watched) {
        w->watched = true;
        wh_client_begin_to_receive(&w->core);
        if (!wh_client_may_sleep(&w->core))
            wh_fd_ring(&w->bell);
    }
    return w->bell.number;
}

int64_t wheeld_now_ns(const wheeld *w) { return wh_client_now(&w->core); }

uint32_t wheeld_payload_room(const wheeld *w) { return wh_client_most_payload(&w->core); }

const char *wheeld_worker(const wheeld *w) { return w->name; }
