/* Workers: what they do: the calls of the core (calls.h), each with its entry in the ledger; and a
 * crew at work. A call waits only if its worker `waits`. */
#ifndef SWEEP_WORKERS_H
#define SWEEP_WORKERS_H

#include "crew.h"

/* -- workers ----------------------------------------------------------------------------------- */

#define MOST_NAPS 500

/* This goes on while a call of a worker waits. */
static enum wh_nap (*nap_play)(worker *w);

/* The clock is driven by hand: what looks for some microseconds looks once. */
static int64_t hand_now(void) { return S->looks += S->look; }

/* Others go on, at full speed: the instructions that are gone through are the waiting worker's. */
static enum wh_nap hand_nap(wh_client *c)
{
    worker *w = &S->workers[c->worker];
    CHECK(w->waits, "row %u waits", c->worker);
    CHECK(++S->naps < MOST_NAPS, "row %u waits for ever", c->worker);
    step_end();
    step_gate *gate = step_mine;
    step_mine = NULL;
    w->waits = false;
    enum wh_nap nap = nap_play(w);
    w->waits = nap != WH_NAP_GONE;
    arena_open(nap != WH_NAP_GONE); /* whose worker has left touches nothing any more */
    step_mine = gate;
    step_begin();
    return nap;
}
/* As the binding sleeps: whoever is rung looks, and so does who sleeps for a while only. */
static enum wh_nap hand_doze(wh_client *c, int64_t ns)
{
    (void)ns;
    return wh_client_may_sleep(c) ? hand_nap(c) : WH_NAP_OVER;
}
static const wh_waits hand_waits = {hand_now, hand_nap, hand_doze};

/* -- payloads in the heap ---------------------------------------------------------------------- */

#define HEAVY_BYTES 256u          /* a payload of one block; other ones are chains */
#define CHAIN_BYTES (WH_CHUNK_DATA + 64u)

/* Where the last payloads that came are; not in the arena: nobody needs them after the call. */
static struct heavy {
    uint64_t id;
    uint32_t size;
    char bytes[CHAIN_BYTES];
} heavies[EVENTS];
static uint32_t heavy_count;

static char *heavy_room(wh_client *c, uint64_t id, uint32_t size)
{
    (void)c;
    struct heavy *one = &heavies[heavy_count % EVENTS];
    CHECK(size <= CHAIN_BYTES, "payload of %u bytes", size);
    one->id = id;
    one->size = size;
    return one->bytes;
}
static void heavy_keep(wh_client *c, uint64_t id, uint32_t size)
{
    (void)c, (void)id, (void)size;
    heavy_count++;
}
static const wh_payload_sink heavy_sink = {heavy_room, heavy_keep};

/* The bytes that a timer brings; in a crew with a heap most have no room beside their slot. */
static uint32_t heavy_size(uint64_t number, uint32_t wanted)
{
    if (!crew_heap_chunks)
        return S->config.payload_bytes;
    return wanted ? wanted : 8 + 8 * (uint32_t)(number % 12);
}

static void heavy_check(const wh_completion *event, uint32_t size)
{
    for (uint32_t i = heavy_count; i > 0 && i + EVENTS > heavy_count; i--) {
        const struct heavy *one = &heavies[(i - 1) % EVENTS];
        if (one->id != event->id)
            continue;
        CHECK(one->size == size, "%llu: %u bytes, not %u", (ull)event->cookie, size, one->size);
        for (uint32_t at = 0; at < size; at += 8)
            CHECK(memcmp(one->bytes + at, &event->cookie, 8) == 0, "payload of %llu is another's",
                  (ull)event->cookie);
        return;
    }
    FAIL("%llu came without its payload", (ull)event->cookie);
}

/* All timers are over: nothing is left of them, and nobody holds a chunk. */
static void heavy_none(void)
{
    const wh_heap *h = &S->clock.heap;
    for (uint32_t chunk = 0; chunk < wh_heap_end(h); chunk++) {
        CHECK(!wh_chunk_is_held(wh_load_relaxed(&h->chunks[chunk].word)), "chunk %u is held",
              chunk);
        for (uint32_t i = 0; i < WH_CHUNK_BLOCKS; i++) {
            uint64_t id = wh_load_relaxed(&wh_heap_front(h, chunk)->ids[i]);
            CHECK(id == 0, "block %u of chunk %u is left of id %llx, slot %u", i, chunk, (ull)id,
                  wh_id_slot(id));
        }
    }
}

/* How often the last held events were delivered before, as long as the call lasts. */
static struct again {
    uint64_t id;
    uint32_t before;
} agains[EVENTS];
static uint32_t again_count;

static void again_note(wh_client *c, uint64_t id, uint32_t before)
{
    (void)c;
    agains[again_count++ % EVENTS] = (struct again){id, before};
}

/* -- workers ----------------------------------------------------------------------------------- */

static void worker_bind(uint32_t row)
{
    CHECK(row < ROWS, "no such row");
    worker *w = &S->workers[row];
    CHECK(wh_client_bind(&w->client, &S->config, S->wheel, S->slots, S->segments[row], row,
                         w->incarnation, ROWS),
          "bind");
    w->client.waits = &hand_waits;
    if (S->directory)
        CHECK(wh_keys_bind(&w->keys, S->directory, ROWS, S->config.capacity, w->client.states,
                           w->client.slots, row),
              "no memory");
    w->client.sink = &heavy_sink;
    w->client.again = again_note;
    wh_client_begin_to_receive(&w->client);
    w->events = arena_take(EVENTS * wh_event_bytes(&w->client));
    w->row = row;
    w->head = w->client.comp_head;
    w->alive = true;
}

static void worker_segment(uint32_t row)
{
    if (!S->segments[row])
        S->segments[row] = arena_take(S->geometry.worker_bytes);
    memset(S->segments[row], 0, S->geometry.worker_bytes);
    wh_create_worker(S->segments[row], &S->config, wh_port_of(S->wheel, &S->geometry, row));
}

/* A new worker in that row, which is free. */
static worker *worker_hire(uint32_t row)
{
    worker *w = &S->workers[row];
    worker_segment(row);
    *w = (worker){.incarnation = ++S->incarnations, .sleeps = dice(2), .member = dice(2)};
    S->bells[row] = 0;
    S->policy[row] = 0;
    S->unnamed[row] = 0;
    clock_attach(row);
    worker_bind(row);
    return w;
}

static inline uint32_t worker_target(uint32_t row)
{
    if (row == TO_GROUP)
        return (dice(2) ? FIRST_GROUP : SECOND_GROUP) << 12 | WH_TARGET_GROUP;
    return (uint32_t)(S->workers[row].incarnation & 0xfffff) << 12 | (row + 1);
}

static inline bool worker_acts(const worker *w) { return w->alive && !w->still && !w->holds; }

/* It is short of slots, or says so. */
static void worker_ask(worker *w)
{
    static const uint64_t sizes[] = {1, 5, 40, 150};
    uint64_t n = sizes[dice(4)];
    bool all = dice(2);
    step_begin();
    wh_client_ask(&w->client, n, all);
    wh_client_ring(&w->client);
    step_end();
}

typedef struct plan {
    int64_t delay, interval;
    uint32_t to; /* a row, or TO_GROUP; its own: no target */
    uint32_t kind; /* of clock */
    uint32_t bytes; /* of payload, in a crew with a heap; 0: some */
    uint32_t flags; /* WH_DETACHED, WH_LASTING */
} plan;

/* From when on the clock knows of a call that has returned. A timer for others may meet one whose
 * sweep is not over, and is dealt with then. */
static int64_t told_of(const entry *e, uint32_t to)
{
    for (uint32_t row = 0; row < ROWS; row++)
        if (S->leaving[row] && to != e->owner)
            return INT64_MAX;
    return crew_now();
}

/* Its entry in the ledger, and the request: with a payload of CHAIN_BYTES at most, in `payload`. */
static wh_request worker_request(worker *w, plan p, char *payload)
{
    int64_t deadline = wh_time_add(wh_client_now(&w->client), p.delay);
    entry *e = ledger_add(&S->book, w->row, p.to, deadline, p.interval);
    uint64_t number = (uint64_t)(e - S->book.entries);
    uint32_t bytes = heavy_size(number, p.bytes);
    for (uint32_t at = 0; at < bytes; at += 8)
        memcpy(payload + at, &number, 8);
    wh_request r = {.deadline = deadline,
                    .interval = p.interval,
                    .cookie = number,
                    .payload = payload,
                    .payload_size = bytes,
                    .flags = p.kind | p.flags,
                    .target = p.to == w->row ? 0 : worker_target(p.to)};
    e->detached = (p.flags & WH_DETACHED) != 0;
    e->lasting = (p.flags & WH_LASTING) == WH_LASTING;
    if (p.to < ROWS && !S->workers[p.to].alive)
        e->to = NO_ROW; /* it comes back to its owner */
    return r;
}

/* The call has returned; 0: it armed nothing. */
static bool worker_armed(entry *e, uint32_t to, uint64_t id)
{
    e->id = id;
    e->flight = LANDED;
    e->asked = told_of(e, to);
    e->used = id != 0;
    if (!id && e == &S->book.entries[S->book.count - 1])
        S->book.count--;
    return id != 0;
}

/* False: there was no slot. */
static bool worker_schedule(worker *w, plan p, uint32_t *cookie)
{
    char payload[CHAIN_BYTES]; /* not static: others schedule while this call waits */
    wh_request r = worker_request(w, p, payload);
    uint64_t id = 0;
    step_begin();
    if (!(r.flags & WH_DETACHED) || wh_client_detached_room(&w->client, 1, w->waits) == WH_CALL_OK)
        wh_call_schedule(&w->client, &r, r.deadline, w->waits, &id);
    step_end();
    if (cookie)
        *cookie = (uint32_t)r.cookie;
    return worker_armed(&S->book.entries[r.cookie], p.to, id);
}

static bool worker_cancel(worker *w, uint32_t cookie)
{
    entry *e = &S->book.entries[cookie];
    e->flight = CANCELLING;
    e->flier = (uint8_t)w->row;
    step_begin();
    bool won = wh_call_cancel(&w->client, e->id, w->waits) == WH_CALL_OK;
    step_end();
    e->flight = LANDED;
    if (won)
        ledger_cancelled(&S->book, e, cookie);
    return won;
}

static bool worker_move(worker *w, uint32_t cookie, int64_t delay)
{
    wh_client *c = &w->client;
    entry *e = &S->book.entries[cookie];
    if (e->id == 0 || (!w->waits && !wh_client_fits(c, 1)))
        return false;
    e->flight = MOVING;
    e->flier = (uint8_t)w->row;
    e->tried = wh_time_add(wh_client_now(c), delay);
    int64_t asked = e->asked;
    e->asked = INT64_MAX;
    e->moved = true;
    step_begin();
    bool moved = wh_call_reschedule_at(c, e->id, e->tried, w->waits) == WH_CALL_OK;
    step_end();
    e->flight = LANDED;
    e->asked = moved && asked != INT64_MAX ? told_of(e, e->to) : asked;
    if (moved)
        e->wanted = e->tried, e->left = -1;
    else
        e->refused = crew_now();
    return moved;
}

/* A call that moves a timer to `tried`, or leaves it as it is. Returns when the clock was told of
 * it before. */
static int64_t move_begin(const worker *w, entry *e, int64_t tried)
{
    int64_t asked = e->asked;
    e->flight = MOVING;
    e->flier = (uint8_t)w->row;
    e->tried = tried;
    e->asked = INT64_MAX;
    e->moved = true;
    step_begin();
    return asked;
}
static void move_end(entry *e, int64_t asked, bool moved)
{
    step_end();
    e->flight = LANDED;
    e->asked = moved && asked != INT64_MAX ? told_of(e, e->to) : asked;
    if (moved)
        e->wanted = e->tried;
    else
        e->refused = crew_now();
}

/* Another period, for a periodic timer. */
static inline void worker_move_every(worker *w, uint32_t cookie, int64_t delay, int64_t interval)
{
    entry *e = &S->book.entries[cookie];
    int64_t asked = move_begin(w, e, wh_time_add(wh_client_now(&w->client), delay));
    move_end(e, asked,
             wh_call_reschedule_every(&w->client, e->id, delay, interval, w->waits) == WH_CALL_OK);
}

/* To a period from now; one that has not ticked stays as it is. */
static inline void worker_follow(worker *w, uint32_t cookie)
{
    entry *e = &S->book.entries[cookie];
    int64_t now = wh_client_now(&w->client), interval = e->interval;
    int64_t asked = move_begin(w, e, wh_time_add(now, interval));
    move_end(e, asked, wh_call_follow(&w->client, e->id, now, w->waits) == WH_CALL_OK);
}

#define PAUSED (INT64_MAX / 2) /* when a paused timer is due */

static inline void worker_pause(worker *w, uint32_t cookie)
{
    entry *e = &S->book.entries[cookie];
    int64_t left = wh_time_sub(e->wanted, wh_client_now(&w->client));
    int64_t asked = move_begin(w, e, PAUSED);
    bool paused = wh_call_pause(&w->client, e->id) == WH_CALL_OK;
    /* another may have moved it while this one stood in the call */
    int64_t moved = wh_time_sub(e->wanted, wh_client_now(&w->client));
    left = moved < left ? moved : left;
    move_end(e, asked, paused);
    if (paused && e->left < 0)
        e->left = left < 0 ? 0 : left;
}
static inline void worker_resume(worker *w, uint32_t cookie)
{
    entry *e = &S->book.entries[cookie];
    e->floats = true;
    int64_t asked = move_begin(w, e, wh_time_add(wh_client_now(&w->client), e->left));
    bool resumed = wh_call_resume(&w->client, e->id, w->waits) == WH_CALL_OK;
    move_end(e, asked, resumed);
    if (resumed)
        e->left = -1;
}

/* Told in one piece. All of them are `w`'s. */
static inline void worker_move_many(worker *w, const uint32_t *cookies, uint32_t count,
                                    int64_t delay)
{
    int64_t wanted = wh_time_add(wh_client_now(&w->client), delay);
    uint64_t ids[8];
    int64_t deadlines[8];
    uint8_t moved[8] = {0};
    for (uint32_t i = 0; i < count; i++) {
        entry *e = &S->book.entries[cookies[i]];
        e->flight = MOVING;
        e->flier = (uint8_t)w->row;
        e->tried = wanted;
        e->asked = INT64_MAX;
        e->moved = true;
        ids[i] = e->id;
        deadlines[i] = wanted;
    }
    wh_batch batch = {.n = count, .ids = ids, .deadlines = deadlines};
    step_begin();
    wh_call_reschedule_batch(&w->client, &batch, moved, w->waits);
    step_end();
    for (uint32_t i = 0; i < count; i++) {
        entry *e = &S->book.entries[cookies[i]];
        e->flight = LANDED;
        e->asked = told_of(e, e->to);
        if (moved[i])
            e->wanted = wanted;
    }
}

/* -- receiving --------------------------------------------------------------------------------- */

static void worker_check_payload(const wh_completion *event)
{
    uint32_t size;
    memcpy(&size, &event->payload_size, sizeof size);
    if (size > S->config.payload_bytes)
        heavy_check(event, size);
    else
        check_payload(event, S->config.payload_bytes);
}

static void worker_note(const worker *w, const wh_completion *event)
{
    if (S->book.tolerant &&
        (event->cookie >= S->book.count || S->book.entries[event->cookie].id != event->id))
        return;
    worker_check_payload(event);
    ledger_event(&S->book, event->cookie, event->id, event->deadline, event->fired, event->missed);
    const entry *e = &S->book.entries[event->cookie];
    bool firm = e->to < ROWS && e->owner < ROWS && !e->loose && S->workers[e->to].alive;
    CHECK(entry_free(&S->book, e, crew_now()) || e->holder == w->row + 1,
          "%llu came to row %u, but row %d holds it", (ull)event->cookie, w->row, e->holder - 1);
    CHECK(!firm || e->to == w->row, "%llu went to row %u, not %u", (ull)event->cookie, w->row,
          e->to);
}

/* One poll, which is swept; returns how many events are in w->events. */
static uint64_t worker_polls(worker *w)
{
    wh_client *c = &w->client;
    step_begin();
    bool more;
    uint64_t got = wh_call_poll(c, (int)w->row, w->events, EVENTS, w->sleeps, &more);
    if (more)
        wh_bell_ring((int)w->row);
    step_end();
    w->head = c->comp_head;
    return got;
}

/* Receives events; none if it sleeps and was not rung. */
static uint64_t worker_receive(worker *w)
{
    wh_client *c = &w->client;
    if (w->sleeps && c->wait_seq & 1 && !S->bells[w->row]) {
        wh_client_reclaim(c); /* as the next schedule would */
        return 0;
    }
    w->head = c->comp_head;
    uint64_t got = worker_polls(w);
    for (uint64_t i = 0; i < got; i++)
        worker_note(w, (const wh_completion *)(w->events + i * wh_event_bytes(c)));
    return got;
}

/* All is quiet: what is armed is due later, by its own slot. */
static void crew_none_overdue(void)
{
    wh_clock *c = &S->clock;
    uint64_t now = (uint64_t)(crew_now() / S->config.tick_ns);
    for (uint32_t slot = 0; slot < S->config.capacity; slot++) {
        const wh_peer *owner = wh_owner_of(c, slot);
        if (owner == NULL || owner->leave ||
            wh_state_phase(wh_load_relaxed(&c->states[slot])) != WH_ARMED)
            continue;
        wh_timing t = wh_timing_of(c, slot);
        CHECK(wh_due_tick(&c->wheel, t.due) > now,
              "slot %u (%llu) is overdue by %lld ns, link: list %d stage %llx", slot,
              (ull)wh_load_relaxed(&c->slots[slot].cookie), (long long)(crew_now() - t.due),
              (int)c->wheel.links[slot].list, (ull)c->wheel.links[slot].completion);
    }
}

/* Until nothing moves any more. */
static void crew_settle(void)
{
    for (int turn = 0, quiet = 0; quiet < 3; turn++) {
        uint64_t got = 0;
        CHECK(turn < 200, "200 passes and still events");
        clock_work();
        for (uint32_t row = 0; row < ROWS; row++)
            if (worker_acts(&S->workers[row]))
                got += worker_receive(&S->workers[row]);
        quiet = got ? 0 : quiet + 1;
    }
    for (uint32_t row = 0; row < ROWS; row++) {
        const worker *w = &S->workers[row];
        bool asleep = worker_acts(w) && w->client.wait_seq & 1 && !S->bells[row];
        CHECK(!asleep || !wh_client_ready(&w->client), "row %u sleeps beside its events", row);
    }
    if (!crew_whole())
        return;
    crew_none_overdue();
    S->book.memberless = true;
    for (uint32_t row = 0; row < ROWS; row++) {
        const worker *w = &S->workers[row];
        if (S->leaving[row] || w->holds)
            return;
        S->book.memberless &= !(w->alive && w->member);
    }
    ledger_none_waits(&S->book, crew_now());
}

/* -- the beginning ----------------------------------------------------------------------------- */

/* Ring positions start anywhere, just below a wrap too. */
static uint64_t odd_position(void)
{
    static const uint64_t ends[] = {0, 1ull << 32, 1ull << WH_COMPLETION_WORKER_AT, 0, 12345678};
    return ends[dice(5)] - dice(40);
}

static void crew_make(uint64_t seed)
{
    static const uint32_t capacities[] = {256, 256, 320, 512};
    memory->used = 0;
    S = arena_take(sizeof *S);
    S->look = MS;
    S->rng = rng_mix(seed, 7);
    S->config = (wh_config){.tick_ns = MS,
                            .wheel_bits = 2 + (uint32_t)dice(3),
                            .capacity = capacities[dice(4)],
                            .max_workers = ROWS,
                            .payload_bytes = dice(3) ? 16 : 0,
                            .heap_chunks = crew_heap_chunks,
                            .max_payload = crew_heap_chunks ? CHAIN_BYTES : 0,
                            .virtual_clock = 1,
                            /* with keys all may be detached */
                            .detached_most = crew_keyed ? UINT32_MAX : MOST_DETACHED,
                            .origin_ns = (int64_t)dice(1000) * MS + (int64_t)dice(MS),
                            .token = 1};
    S->geometry = wh_geometry_of(&S->config);
    S->wheel = arena_take(S->geometry.wheel_bytes);
    S->slots = arena_take(S->geometry.slots_bytes);
    wh_create_wheel(S->wheel, &S->config);
    wh_create_slots(S->slots, &S->config);
    for (uint32_t row = 0; row < ROWS; row++) {
        wh_port *port = wh_port_of(S->wheel, &S->geometry, row);
        wh_store_relaxed(&port->sub_head, odd_position());
        wh_store_relaxed(&port->comp_tail, odd_position());
        wh_store_relaxed(&port->ret_tail, odd_position());
    }
    wh_clock_bind(&S->clock, S->wheel, S->slots, S->peers);
    if (crew_trace_bits) {
        S->trace = arena_take(wh_trace_bytes(S->config.capacity, crew_trace_bits));
        wh_trace_create(S->trace, S->config.capacity, crew_trace_bits, 1, odd_position());
        wh_trace_bind(&S->clock.trace, S->trace);
    }
    if (crew_keyed) {
        uint64_t bytes = wh_keys_parts_of(ROWS, S->config.capacity).bytes;
        S->directory =
            crew_directory_end ? memset(crew_directory_end - bytes, 0, bytes) : arena_take(bytes);
        wh_keys_create(S->directory, ROWS, S->config.capacity, 1, 0);
        clock_binds_keys();
    }
    for (uint32_t row = 0; row + 1 < ROWS; row++)
        worker_hire(row);
    if (!crew_keeps)
        return;
    worker_segment(KEEPER);
    S->workers[KEEPER] = (worker){.incarnation = ++S->incarnations, .row = KEEPER};
    clock_keeps();
}

#endif
