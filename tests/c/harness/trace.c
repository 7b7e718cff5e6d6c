/* Trace: a clock that appends without waiting, a recorder that copies and releases, at odd moments
 * each.
 *
 * Every record is whole and of its event, in order; what is not there is told of, kind by kind.
 * Positions run over their edges. Beside that, what needs clocks that differ, or a worker that is
 * faster than a tick. */
#include "crew.h"

#define TAKE 40

typedef struct run {
    wh_trace trace;
    wh_trace_seg *seg;
    uint64_t events;
    wh_au32 over;                       /* the clock has appended its last */
    uint64_t known[WH_TRACE_KINDS];     /* events by kind that rows tell of */
    uint64_t next, rows, losses;
} run;

static enum wh_trace_kind kind_of(uint64_t event)
{
    return 1 + (enum wh_trace_kind)(event * 7 % 5);
}
static uint32_t count_of(uint64_t event)
{
    return kind_of(event) == WH_TRACE_RESCHEDULED ? 1 + (uint32_t)(event % 3) : 1;
}

static void *clock_main(void *argument)
{
    run *r = argument;
    uint64_t rng = rng_seeded(1);
    jitter_seed(1);
    for (uint64_t event = 1; event <= r->events; event++) {
        wh_trace_record *record =
            wh_trace_append(&r->trace, kind_of(event), count_of(event), (int64_t)event);
        if (record) {
            *record = (wh_trace_record){.time_ns = (int64_t)event,
                                        .scheduled_ns = ~(int64_t)event,
                                        .deadline_ns = (int64_t)event * 3,
                                        .id = event,
                                        .cookie = event * 0x9e3779b97f4a7c15ull,
                                        .count = count_of(event),
                                        .missed = (uint32_t)event,
                                        .kind = (uint8_t)kind_of(event)};
            wh_trace_publish(&r->trace);
        }
        if (rng_below(&rng, 64) == 0 && r->trace.untold)
            wh_trace_tell(&r->trace, (int64_t)event);
        if (rng_below(&rng, 256) == 0)
            pause_ns((long)rng_below(&rng, 20000));
    }
    wh_store_release(&r->over, 1);
    return NULL;
}

static void check_record(run *r, const wh_trace_record *record)
{
    uint64_t event = record->id;
    if (record->kind == WH_TRACE_LOST) {
        CHECK(event > 0 && event < WH_TRACE_LOST && record->count > 0, "lost: %llu of kind %llu",
              (ull)record->count, (ull)event);
        r->known[event] += record->count;
        r->losses++;
        return;
    }
    CHECK(event >= r->next && event <= r->events, "event %llu after %llu", (ull)event,
          (ull)r->next);
    CHECK(record->time_ns == (int64_t)event && record->scheduled_ns == ~(int64_t)event &&
              record->deadline_ns == (int64_t)event * 3 && record->missed == (uint32_t)event &&
              record->cookie == event * 0x9e3779b97f4a7c15ull && record->count == count_of(event) &&
              record->kind == kind_of(event),
          "the record of event %llu is torn", (ull)event);
    r->next = event + 1;
    r->known[record->kind] += record->count;
    r->rows++;
}

/* One look. Returns how many records there were. */
static uint64_t look(run *r, uint64_t *position, uint64_t *rng)
{
    wh_trace_record out[TAKE];
    uint64_t count = wh_trace_take(r->seg, *position, out, 1 + rng_below(rng, TAKE));
    CHECK(count <= TAKE, "position %llu is not in the ring", (ull)*position);
    for (uint64_t i = 0; i < count; i++)
        check_record(r, &out[i]);
    *position += count;
    /* what is not kept yet stays in the ring */
    uint64_t keep = rng_below(rng, 4) ? 0 : rng_below(rng, count + 1);
    CHECK(wh_trace_release(r->seg, *position - keep), "release");
    CHECK(!wh_trace_release(r->seg, *position + (1ull << 40)), "released what is not there");
    return count;
}

static void *recorder_main(void *argument)
{
    run *r = argument;
    uint64_t rng = rng_seeded(2), position = wh_load_relaxed(&r->seg->rec_head);
    jitter_seed(2);
    for (bool over = false; !over;) {
        over = wh_load_acquire(&r->over);
        while (look(r, &position, &rng))
            if (rng_below(&rng, 32) == 0)
                pause_ns((long)rng_below(&rng, 50000));
    }
    CHECK(wh_trace_release(r->seg, position), "release");
    return NULL;
}

static void play(const char *name, uint32_t bits, uint64_t position)
{
    static run r;
    memset(&r, 0, sizeof r);
    uint64_t bytes = wh_trace_bytes(WH_SLAB_SLOTS, bits);
    r.seg = aligned_alloc(4096, bytes);
    CHECK(r.seg, "out of memory");
    memset(r.seg, 0, bytes);
    wh_trace_create(r.seg, WH_SLAB_SLOTS, bits, 1, position);
    wh_trace_bind(&r.trace, r.seg);
    r.events = 30000 * opt.scale;
    r.next = 1;
    pthread_t clock, recorder;
    CHECK(pthread_create(&clock, NULL, clock_main, &r) == 0, "thread");
    CHECK(pthread_create(&recorder, NULL, recorder_main, &r) == 0, "thread");
    pthread_join(clock, NULL);
    pthread_join(recorder, NULL);
    wh_trace_tell(&r.trace, 0);
    uint64_t rng = rng_seeded(3), last = wh_load_relaxed(&r.seg->rec_head);
    while (look(&r, &last, &rng))
        ;
    CHECK(r.trace.untold == 0, "%llu are not told of", (ull)r.trace.untold);
    uint64_t expected[WH_TRACE_KINDS] = {0};
    for (uint64_t event = 1; event <= r.events; event++)
        expected[kind_of(event)] += count_of(event);
    for (uint32_t kind = 1; kind < WH_TRACE_LOST; kind++) {
        CHECK(r.known[kind] == expected[kind], "kind %u: rows tell of %llu, there were %llu", kind,
              (ull)r.known[kind], (ull)expected[kind]);
        CHECK(wh_load_relaxed(&r.seg->counts[kind]) == expected[kind], "the account of kind %u",
              kind);
    }
    printf("  %s: %llu events, %llu rows, %llu tell of losses\n", name, (ull)r.events, (ull)r.rows,
           (ull)r.losses);
    free(r.seg);
}

/* -- the recorder's sleep ---------------------------------------------------------------------- */

typedef struct nap {
    wh_trace trace;
    wh_trace_seg *seg;
    uint64_t rounds;
    wh_au64 at[2]; /* rounds that the clock, and the recorder, have come to */
} nap;

static void meet(nap *n, uint32_t who, uint64_t round)
{
    wh_store_seq(&n->at[who], round);
    for (uint32_t tries = 0; wh_load_seq(&n->at[1 - who]) < round; tries++)
        if (tries % 1024 == 1023)
            sched_yield();
}

static void *napping_clock(void *argument)
{
    nap *n = argument;
    for (uint64_t round = 1; round <= n->rounds; round++) {
        meet(n, 0, 2 * round);
        wh_trace_publish(&n->trace);
        wh_trace_wakes(&n->trace);
        meet(n, 0, 2 * round + 1);
    }
    return NULL;
}

/* Each round has one record, and one recorder that wants to sleep. */
static void play_naps(void)
{
    static nap n;
    memset(&n, 0, sizeof n);
    n.seg = aligned_alloc(4096, wh_trace_bytes(WH_SLAB_SLOTS, WH_MIN_TRACE_BITS));
    CHECK(n.seg, "out of memory");
    memset(n.seg, 0, wh_trace_bytes(WH_SLAB_SLOTS, WH_MIN_TRACE_BITS));
    wh_trace_create(n.seg, WH_SLAB_SLOTS, WH_MIN_TRACE_BITS, 1, 0);
    wh_trace_bind(&n.trace, n.seg);
    n.rounds = 10000 * opt.scale;
    uint64_t sleeps = 0;
    pthread_t clock;
    CHECK(pthread_create(&clock, NULL, napping_clock, &n) == 0, "thread");
    for (uint64_t round = 1; round <= n.rounds; round++) {
        uint32_t seen;
        meet(&n, 1, 2 * round);
        bool asleep = wh_trace_may_sleep(n.seg, round - 1, &seen);
        meet(&n, 1, 2 * round + 1);
        CHECK(!asleep || wh_load_seq(&n.seg->rings) != seen, "slept beside record %llu",
              (ull)round);
        sleeps += asleep;
        wh_trace_awake(n.seg);
    }
    pthread_join(clock, NULL);
    printf("  naps: %llu rounds, %llu sleeps\n", (ull)n.rounds, (ull)sleeps);
    free(n.seg);
}

/* -- with a wheel ------------------------------------------------------------------------------ */

static void traced_world(world *w, hand *h, account *a)
{
    wh_config config = {.tick_ns = MS,
                        .wheel_bits = 6,
                        .capacity = 256,
                        .max_workers = 1,
                        .virtual_clock = 1,
                        .origin_ns = 5 * MS};
    world_make(w, &config);
    world_trace(w, 10);
    account_make(a, 1);
    hand_attach(h, w, a, 0, 7);
}

static void traced_world_free(world *w, hand *h, account *a)
{
    hand_free(h);
    account_free(a);
    world_free(w);
}

/* Both times of an expiration are on the timer's clock, all others on the base clock. */
static void play_clocks(void)
{
    static world w;
    static hand h;
    account a;
    wh_trace_record records[4];
    uint32_t reaped;
    for (uint32_t kind = 0; kind < WH_CLOCK_KINDS; kind++) {
        traced_world(&w, &h, &a);
        int64_t ahead = (int64_t)kind * 1000 * MS, due = 9 * MS + ahead;
        uint32_t slot = hand_slot(&h);
        wh_request r = {.deadline = due, .flags = kind};
        wh_client_push(&h.client, wh_client_arm(&h.client, slot, &r));
        wh_client_publish(&h.client, INT64_MAX);
        for (int64_t now = 5 * MS; now <= 10 * MS; now += 5 * MS) {
            for (int64_t k = 0; k < WH_CLOCK_KINDS; k++)
                w.clock.now[k] = now + k * 1000 * MS;
            wh_pass(&w.clock, &reaped);
        }
        CHECK(wh_trace_take(w.trace, 0, records, 4) == 2, "clock %u: not two records", kind);
        const wh_trace_record *scheduled = &records[0], *expired = &records[1];
        CHECK(scheduled->time_ns == 5 * MS && scheduled->deadline_ns == 9 * MS &&
                  scheduled->flags == kind,
              "clock %u: scheduled", kind);
        CHECK(expired->time_ns == 10 * MS + ahead && expired->deadline_ns == due &&
                  expired->scheduled_ns == 5 * MS && expired->flags == kind,
              "clock %u: expired", kind);
        traced_world_free(&w, &h, &a);
    }
}

static void *mover_main(void *argument)
{
    hand *h = argument;
    jitter_seed(3);
    for (uint64_t i = 0; i < 3000 * opt.scale; i++)
        hand_move(h, 0, 1 + (int64_t)rng_below(&h->rng, 2 * MS));
    wh_store_release((wh_au32 *)h->own, 1);
    return NULL;
}

/* A periodic timer is moved while it ticks: both raise the version, and each is accounted for. */
static void play_moves(void)
{
    static world w;
    static hand h;
    account a;
    wh_au32 over = 0;
    uint64_t cookie;
    traced_world(&w, &h, &a);
    h.last = 1;
    h.own = &over;
    CHECK(hand_schedule(&h, (plan){.delay = MS, .interval = MS}, &cookie), "no slot");
    CHECK(pthread_create(&h.thread, NULL, mover_main, &h) == 0, "thread");
    while (!wh_load_acquire(&over)) {
        world_advance_to(&w, w.clock.now[WH_CLOCK_BASE] + MS);
        w.peers[0].comp_head = w.peers[0].comp_tail; /* read, as far as the clock knows */
        wh_store_relaxed(&w.peers[0].seg->comp_head, w.peers[0].comp_tail);
    }
    pthread_join(h.thread, NULL);
    world_settle(&w);
    CHECK(wh_client_cancel(&h.client, wh_load_relaxed(&a.entries[0].id)), "cancel");
    wh_client_publish_lazily(&h.client);
    world_settle(&w);
    wh_trace_seg *seg = w.trace;
    CHECK(wh_load_relaxed(&seg->counts[WH_TRACE_RESCHEDULED]) == h.moves,
          "%llu moves, the trace says %llu", (ull)h.moves,
          (ull)wh_load_relaxed(&seg->counts[WH_TRACE_RESCHEDULED]));
    CHECK(wh_load_relaxed(&seg->counts[WH_TRACE_EXPIRED]) == wh_load_relaxed(&w.clock.seg->fired),
          "ticks");
    CHECK(wh_load_relaxed(&seg->counts[WH_TRACE_CANCELLED]) == 1, "cancels");
    printf("  moves: %llu, ticks: %llu\n", (ull)h.moves, (ull)wh_load_relaxed(&w.clock.seg->fired));
    traced_world_free(&w, &h, &a);
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    play("narrow", 4, 0);
    play("narrow over the edge", 5, (uint64_t)-1000);
    play("half", 6, (1ull << 32) - 5000);
    play("wide", 12, (1ull << 63) - 20000);
    play_naps();
    play_clocks();
    play_moves();
    printf("ok\n");
    return 0;
}
