/* Session: hello, resume, good-bye. */
#include "session.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

#define SECOND_NS 1000000000ll
#define LOOK_NS (SECOND_NS / 10)
#define TRY_NS (SECOND_NS / 50)
#define AWAY_NS (10 * SECOND_NS) /* before the caller is told */

/* -- what an answer names ---------------------------------------------------------------------- */

/* Open the FIFOs of an answer; both descriptors are the caller's. */
static int open_bells(const place *p, connection *c, int *bell, int *clock_bell)
{
    char name[64];
    *bell = c->passed;
    c->passed = -1;
    if (*bell >= 0 && !place_has_fifo(p, *bell))
        return fail(WHEELD_NOT_PERMITTED, "the descriptor of the daemon is no FIFO of its user");
    if (*bell >= 0)
        fcntl(*bell, F_SETFL, O_NONBLOCK);
    int result = WHEELD_OK;
    if (*bell < 0 && json_text(json_member(c->line, "worker_fifo"), name, sizeof name))
        result = place_open_fifo(p, name, bell);
    if (result != WHEELD_OK || !json_text(json_member(c->line, "clock_fifo"), name, sizeof name))
        return result ? result : fail(WHEELD_MISMATCH, "the daemon's answer names no FIFO");
    return place_open_fifo(p, name, clock_bell);
}

static int map_all(wheeld *w, const place *p)
{
    const struct {
        const char *kind;
        int number;
        bool writable;
        mapping *to;
    } segments[] = {{"wheel", WH_KIND_WHEEL, false, &w->wheel},
                    {"slots", WH_KIND_SLOTS, true, &w->slots},
                    {"registry", WH_KIND_REGISTRY, false, &w->registry},
                    {"worker", WH_KIND_WORKER, true, &w->worker}};
    const char *names = json_member(w->control->line, "segments");
    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++) {
        char name[NAME_MAX + 1];
        if (!json_text(json_member(names, segments[i].kind), name, sizeof name))
            return fail(WHEELD_MISMATCH, "the daemon's answer names no segment \"%s\"",
                        segments[i].kind);
        int mapped = place_map(p, name, segments[i].number, segments[i].writable, segments[i].to);
        if (mapped != WHEELD_OK)
            return mapped;
    }
    return WHEELD_OK;
}

/* Are the segments as large as the wheel's header says? What was read of it is what is used. */
static bool are_whole(const wheeld *w, const wh_config *config)
{
    if (!wh_config_fits(config) || w->row >= config->max_workers)
        return false;
    wh_geometry g = wh_geometry_of(config);
    return w->wheel.bytes >= g.wheel_bytes && w->slots.bytes >= g.slots_bytes &&
           w->registry.bytes >= g.registry_bytes && w->worker.bytes >= g.worker_bytes;
}

static char *arrival_room(wh_client *c, uint64_t id, uint32_t size)
{
    wheeld *w = (wheeld *)((char *)c - offsetof(wheeld, core));
    struct arrival *a = &w->arrivals[w->arrived];
    if (w->arrived == MOST_EVENTS)
        return NULL;
    free(a->bytes);
    *a = (struct arrival){id, malloc(size ? size : 1)};
    return a->bytes;
}

static void arrival_keep(wh_client *c, uint64_t id, uint32_t size)
{
    (void)id, (void)size;
    ((wheeld *)((char *)c - offsetof(wheeld, core)))->arrived++;
}

static const wh_payload_sink arrivals_sink = {arrival_room, arrival_keep};

void session_forget_payloads(wheeld *w)
{
    for (size_t i = 0; w->arrivals && i < MOST_EVENTS && w->arrivals[i].bytes; i++) {
        free(w->arrivals[i].bytes);
        w->arrivals[i].bytes = NULL;
    }
    w->arrived = 0;
}

static int bind_core(wheeld *w, int clock_bell)
{
    wh_config config = wh_config_of(w->wheel.at);
    uint64_t most = 0;
    if (!are_whole(w, &config))
        return fail(WHEELD_MISMATCH, "the daemon's segments are smaller than its wheel says");
    wh_geometry g = wh_geometry_of(&config);
    if (!wh_client_bind(&w->core, &config, w->wheel.at, w->slots.at, w->worker.at, (uint32_t)w->row,
                        w->incarnation, clock_bell) ||
        (w->events = malloc((size_t)MOST_EVENTS *
                            (sizeof(wh_completion) + config.payload_bytes))) == NULL ||
        (w->arrivals = calloc(MOST_EVENTS, sizeof *w->arrivals)) == NULL)
        return fail(WHEELD_NO_MEMORY, "no memory for a wheel of %u slots", config.capacity);
    wh_client_populate(&w->core);
    json_number(json_member(w->control->line, "max_per_worker"), &most);
    w->core.quota.most = most;
    w->core.sink = &arrivals_sink;
    w->core.row = (wh_row *)((char *)w->registry.at + g.rows_off) + w->row;
    w->core.control = wh_fd_of(w->control->fd);
    return WHEELD_OK;
}

static int settle_in(wheeld *w, const place *p)
{
    const char *answer = w->control->line;
    int bell = -1, clock_bell = -1;
    if (!json_number(json_member(answer, "row"), &w->row) ||
        !json_number(json_member(answer, "incarnation"), &w->incarnation) ||
        !json_number(json_member(answer, "token"), &w->token) ||
        !json_text(json_member(answer, "worker"), w->name, sizeof w->name))
        return fail(WHEELD_MISMATCH, "the daemon's answer to a hello has no usable values");
    int result = open_bells(p, w->control, &bell, &clock_bell);
    w->bell = wh_fd_of(bell);
    if (result == WHEELD_OK)
        result = map_all(w, p);
    if (result == WHEELD_OK)
        result = bind_core(w, clock_bell);
    else if (clock_bell >= 0)
        close(clock_bell);
    return result;
}

/* -- hello ------------------------------------------------------------------------------------- */

static int write_hello(const wheeld_options *o, char *out, size_t size)
{
    char worker[512], group[512], policy[64], kin[512];
    if (!json_quote(o->worker, worker, sizeof worker) ||
        !json_quote(o->group, group, sizeof group) ||
        !json_quote(o->on_death ? o->on_death : "drop", policy, sizeof policy))
        return fail(WHEELD_INVALID, "the name of the worker or group is too long");
    if (o->on_death && strcmp(o->on_death, "keep") == 0 && o->worker == NULL)
        return fail(WHEELD_INVALID,
                    "on_death=keep needs a worker's name: its successor connects under that");
    write_kin(kin, sizeof kin);
    snprintf(out, size, "{\"op\":\"hello\",\"worker\":%s,\"on_death\":%s,\"group\":%s,%s}\n",
             worker, policy, group, kin);
    return WHEELD_OK;
}

/* Ask until there is an answer: who hangs up without one is being restarted. */
static int say_hello(wheeld *w, const place *p, const char *hello)
{
    int64_t until = wh_thread_now() + w->timeout_ns;
    for (;;) {
        int result;
        if ((w->control = connection_open(p, &result)) == NULL)
            return result;
        enum heard heard =
            connection_send(w->control, hello) ? connection_hear(w->control, until) : HEARD_END;
        if (heard == HEARD_ANSWER)
            return answer_result(w->control->line);
        if (wh_thread_now() >= until)
            return fail(WHEELD_NOT_RUNNING, "no answer from wheeld in %s", p->path);
        connection_close(w->control);
        w->control = NULL;
        poll(NULL, 0, (int)(TRY_NS / 1000000));
    }
}

static void session_free(wheeld *w)
{
    if (w->core.slabs.free)
        wh_client_free(&w->core);
    wh_fd_close(&w->bell);
    wh_fd_close(&w->core.clock_bell);
    connection_close(w->control);
    connection_close(w->attempt);
    mapping_drop(&w->wheel);
    mapping_drop(&w->slots);
    mapping_drop(&w->registry);
    mapping_drop(&w->worker);
    if (w->here)
        munmap((void *)w->here, 4096);
    free(w->events);
    session_forget_payloads(w);
    free(w->arrivals);
    free(w);
}

/* A page that a forked child has empty. */
static bool mark_process(wheeld *w)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return false;
    w->here = page;
    *w->here = 1;
    return madvise(page, 4096, MADV_WIPEONFORK) == 0;
}

int wheeld_connect(const char *name, const wheeld_options *options, wheeld **client)
{
    static const wheeld_options none;
    char hello[2048];
    const wheeld_options *o = options ? options : &none;
    place p;
    int result = write_hello(o, hello, sizeof hello);
    *client = NULL;
    if (result != WHEELD_OK || (result = place_find(&p, name, o->runtime_dir)) != WHEELD_OK)
        return result;
    wheeld *w = calloc(1, sizeof *w);
    if (w && mark_process(w)) {
        w->bell = w->core.clock_bell = wh_fd_of(-1);
        w->timeout_ns = o->timeout_ns > 0 ? o->timeout_ns : AWAY_NS;
        memcpy(w->path, p.path, sizeof w->path);
        if ((result = say_hello(w, &p, hello)) == WHEELD_OK)
            result = settle_in(w, &p);
    } else {
        result = fail(WHEELD_NO_MEMORY, "no memory for a client");
    }
    close(p.fd);
    if (result == WHEELD_OK)
        *client = w;
    else if (w)
        session_free(w); /* to the daemon a closed connection is a good-bye */
    return result;
}

/* -- while the supervisor is away -------------------------------------------------------------- */

/* Have another file under a number that the caller knows. */
static void exchange(wh_fd *fd, int other)
{
    if (other < 0)
        return;
    if (wh_fd_is_ours(fd) && dup3(other, fd->number, O_CLOEXEC) >= 0) {
        int number = fd->number;
        *fd = wh_fd_of(number);
    }
    close(other);
}

/* It is back, and knows this worker. The FIFOs may have been removed meanwhile: both are rung. */
static void take_up(wheeld *w, const place *p)
{
    int bell = -1, clock_bell = -1;
    connection_close(w->control);
    w->control = w->attempt;
    w->attempt = NULL;
    w->lost_at = 0;
    w->core.control = wh_fd_of(w->control->fd);
    if (open_bells(p, w->control, &bell, &clock_bell) == WHEELD_OK) {
        exchange(&w->core.clock_bell, clock_bell);
        exchange(&w->bell, bell);
        wh_fd_ring(&w->core.clock_bell);
        wh_fd_ring(&w->bell);
    }
}

static void begin_attempt(wheeld *w, const place *p)
{
    char kin[512], resume[1024];
    int result;
    write_kin(kin, sizeof kin);
    snprintf(resume, sizeof resume,
             "{\"op\":\"resume\",\"row\":%llu,\"incarnation\":%llu,\"token\":%llu,%s}\n",
             (unsigned long long)w->row, (unsigned long long)w->incarnation,
             (unsigned long long)w->token, kin);
    w->attempt = connection_open(p, &result);
    if (w->attempt && !connection_send(w->attempt, resume)) {
        connection_close(w->attempt);
        w->attempt = NULL;
    }
}

/* Go on to be known to the next supervisor. An attempt is never given up for its slowness: one that
 * hears `resume` later, and the connection closed, would take that for a good-bye. */
static int resume(wheeld *w, int64_t now)
{
    place p;
    if (w->attempt == NULL && now < w->try_at)
        return WHEELD_OK;
    w->try_at = now + TRY_NS;
    if (place_find(&p, w->path, NULL) != WHEELD_OK)
        return WHEELD_OK;
    if (w->attempt == NULL)
        begin_attempt(w, &p);
    enum heard heard = w->attempt ? connection_hear(w->attempt, 0) : HEARD_NOTHING_YET;
    if (heard == HEARD_ANSWER && answer_result(w->attempt->line) == WHEELD_OK) {
        take_up(w, &p);
    } else if (heard != HEARD_NOTHING_YET) {
        if (heard == HEARD_ANSWER) {
            w->ended = WHEELD_NOT_RUNNING;
            snprintf(w->ended_because, sizeof w->ended_because, "%s", wheeld_message());
        }
        connection_close(w->attempt);
        w->attempt = NULL;
    }
    close(p.fd);
    return w->ended;
}

int session_look(wheeld *w)
{
    int64_t now = wh_thread_now();
    if (!w->lost_at && now < w->look_at)
        return WHEELD_OK;
    w->look_at = now + LOOK_NS;
    struct pollfd p = {.fd = w->control->fd, .events = POLLRDHUP};
    if (!w->lost_at && poll(&p, 1, 0) > 0)
        w->lost_at = now;
    if (!w->lost_at || resume(w, now) != WHEELD_OK)
        return w->ended;
    if (w->lost_at && now - w->lost_at > AWAY_NS)
        return fail(WHEELD_NOT_RUNNING,
                    "the wheeld daemon in %s has been away for more than 10 s; what is armed stays "
                    "armed, and a later poll connects to it once it is back",
                    w->path);
    return WHEELD_OK;
}

/* -- good-bye ---------------------------------------------------------------------------------- */

/* Is there a connection? If it is lost, try once to have it again. */
static bool has_connection(wheeld *w)
{
    int64_t until = wh_thread_now() + 2 * SECOND_NS;
    do {
        w->look_at = w->try_at = 0;
        session_look(w);
        if (w->attempt == NULL)
            return !w->lost_at && !w->ended;
        poll(NULL, 0, 1);
    } while (wh_thread_now() < until);
    return false;
}

void wheeld_close(wheeld *w)
{
    if (w == NULL)
        return;
    if (*w->here) {
        wh_store_relaxed(&w->core.seg->goodbye, 1);
        /* it answers when all is given back; one that is being restarted hangs up, and its
         * successor has to be told */
        for (int i = 0; i < 2 && has_connection(w); i++)
            if (connection_send(w->control, "{\"op\":\"bye\"}\n") &&
                connection_hear(w->control, wh_thread_now() + 5 * SECOND_NS) != HEARD_END)
                break;
    }
    session_free(w);
}
