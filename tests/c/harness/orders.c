/* Orders: what two processes may see of each other, tried out one by one, in one thread.
 *
 * Idea. One operation runs; at each of its atomic operations in turn, the other side's whole
 * operation comes in between. And each of its stores in turn is held back for as long as C11 allows
 * it to: until a later release is seen, or for ever if it was not sequentially consistent. So a
 * store that is too weak, and two steps in the wrong order, show every time and on any processor; a
 * load that comes too early does not (the thread sanitizer sees to that, in handoffs.c). Then the
 * verdict: nothing is slept over, lost, taken twice, or seen half written. */
#include "interleaving.h"
#include "single.h"

#define CAPACITY 256

static bool asleep; /* the clock is in ppoll */
static bool waits;  /* A is */
static uint64_t id;
static int64_t due;

static void begin(void)
{
    single_world(
        2, (wh_config){.tick_ns = MS, .wheel_bits = 6, .capacity = CAPACITY, .payload_bytes = 8});
    single_attach();
    asleep = waits = false;
    id = 0;
}

static void end(void) { single_free(); }

static void pass_all(void)
{
    uint32_t reaped;
    wh_pass_all(&w.clock, &reaped);
}

static void fall_asleep(void)
{
    asleep = wh_may_sleep(&w.clock, wh_wheel_next_ns(&w.clock.wheel));
    if (!asleep)
        wh_awake(&w.clock);
}

static void wake_up(void)
{
    wh_bell_clear(w.bell[0]);
    wh_awake(&w.clock);
    asleep = false;
}

static void turn(void)
{
    pass_all();
    fall_asleep();
}

static void go_to(int64_t target)
{
    uint32_t reaped;
    wh_advance_virtual(&w.clock, target, &reaped);
}

static uint64_t arm_for(hand *h, uint32_t target, int64_t interval)
{
    wh_client *c = &h->client;
    uint32_t slot = wh_slabs_take(&c->slabs);
    if (slot == WH_NIL && wh_client_claim(c))
        slot = wh_slabs_take(&c->slabs);
    CHECK(slot != WH_NIL, "no slot");
    wh_request r = {.deadline = due,
                    .interval = interval,
                    .cookie = 77,
                    .target = target,
                    .payload = "payload",
                    .payload_size = 8};
    return wh_client_arm(c, slot, &r);
}

static void submit(hand *h, uint64_t submission)
{
    wh_client_push(&h->client, submission);
    wh_client_publish(&h->client, due);
}

static void schedule_it(void)
{
    id = arm_for(A, 0, 0);
    submit(A, id);
}

/* The clock died; another one recovers. */
static void next_clock(void)
{
    new_clock();
    pass_all();
}

static void receive_some(void) { wh_client_receive(&A->client, A->events, EVENTS_ROOM); }

static void reclaim(void) { wh_client_reclaim(&A->client); }

/* The one timer, whenever it was met, comes at its time and as it was scheduled. */
static void check_event(hand *h)
{
    wake_up();
    go_to(due + MS);
    uint64_t got = wh_client_receive(&h->client, h->events, EVENTS_ROOM);
    const wh_completion *event = (const wh_completion *)h->events;
    CHECK(got == 1, "%llu events", (ull)got);
    CHECK(event->id == id && event->deadline == due && event->cookie == 77, "another's event");
    CHECK(event->fired < due + MS, "late");
    CHECK(event->payload_size == 8 && !memcmp(event + 1, "payload", 8), "another's payload");
}

/* -- races: before, the operation, what comes in between, the verdict -------------------------- */

/* A slot that had a tenant far away, so that what is left of its fields shows. */
static void before_schedule(void)
{
    due = 5000 * MS;
    schedule_it();
    pass_all();
    wh_client_cancel(&A->client, id);
    wh_client_publish_lazily(&A->client);
    pass_all();
    wh_client_reclaim(&A->client);
    due = MS;
    schedule_it(); /* rung for once in this sleep of the clock */
    turn();
    turn();
    wake_up();
    go_to(10 * MS);
    receive_some();
    wh_client_ring(&A->client); /* the byte that wakes it is taken out */
    wake_up();
    id = 0;
    due = 20 * MS;
}

static void verdict_schedule(void)
{
    bool drained = atomic_load(&A->client.seg->sub_tail) == w.peers[0].sub_head;
    CHECK(!asleep || drained || rung(w.bell[0]), "a submission is slept over");
    check_event(A);
}

static void before_event(void)
{
    due = 5 * MS;
    schedule_it();
    pass_all();
}
static void fire(void) { go_to(6 * MS); }
static void wait_for_event(void) { waits = wh_client_may_sleep(&A->client); }

static void verdict_waits(void)
{
    CHECK(!waits || rung(A->bell) || !wh_client_ready(&A->client), "A sleeps on an event");
    CHECK(wh_client_ready(&A->client) == 1, "no event");
}

static void before_backlog(void)
{
    fill_events(0);
    due = 0;
    schedule_it();
    pass_all();
    CHECK(wh_client_backlogged(&A->client), "nothing waits");
}

static void verdict_backlog(void)
{
    bool room = wh_can_settle(&w.clock, &w.peers[0]);
    CHECK(!asleep || !room || rung(w.bell[0]),
          "there is room, and the clock sleeps on the backlog");
    wake_up();
    pass_all();
    receive_some();
    CHECK(((wh_completion *)A->events)->id == id, "the event is lost");
}

/* The ring is full; the event that fires now waits behind it. */
static void before_full(void)
{
    fill_events(0);
    due = 5 * MS;
    schedule_it();
    pass_all();
}
static void fire_and_sleep(void)
{
    fire();
    fall_asleep();
}

/* A far timer, cancelled, which the clock has yet to meet; the ring of returns has no room. */
static void before_cancelled(void)
{
    due = 5000 * MS;
    schedule_it();
    pass_all();
    fill_returns(CAPACITY - 1); /* of a slab that is not its own */
    wh_client_cancel(&A->client, id);
    wh_client_publish_lazily(&A->client);
}
static void before_returns(void)
{
    before_cancelled();
    pass_all();
}

static void verdict_returns(void)
{
    bool room = wh_can_settle(&w.clock, &w.peers[0]);
    CHECK(!asleep || !room || rung(w.bell[0]),
          "there is room, and the clock sleeps on the returns");
    wake_up();
    pass_all();
    reclaim();
    CHECK(hand_holds(A, wh_id_slot(id)), "a slot is lost");
    CHECK(!hand_holds(A, CAPACITY - 1), "a slot of nobody's slab was taken up");
}

/* Two are in A's hands, one that it took; entry 0 of the ring names the one, old entries the
 * other. */
static void before_return(void)
{
    due = 5000 * MS;
    uint64_t other = arm_for(A, 0, 0);
    submit(A, other);
    schedule_it();
    pass_all();
    for (uint64_t i = 0; i < w.clock.ret_size; i++)
        wh_store_relaxed(&w.peers[0].rets[i], wh_id_slot(other));
    wh_client_cancel(&A->client, id);
    wh_client_publish_lazily(&A->client);
}
static void verdict_return(void)
{
    reclaim();
    CHECK(hand_holds(A, wh_id_slot(id)), "a slot is lost");
    CHECK(wh_client_ready(&A->client) == 0 && A->client.slabs.magazine_size < WH_SLAB_SLOTS,
          "events");
    for (uint32_t slot = 0; slot < CAPACITY; slot++)
        CHECK(!hand_holds(A, slot) ||
                  wh_state_phase(atomic_load(&w.clock.states[slot])) != WH_ARMED,
              "slot %u is armed and free", slot);
}

/* The ring of submissions is full; the last one counts. */
static void before_drain(void)
{
    wh_client *c = &A->client;
    due = 20 * MS;
    uint64_t last = arm_for(A, 0, 0);
    while (c->sub_tail - c->sub_head < c->sub_size - 1)
        wh_client_push(c, wh_id(0x7fffffff, 0)); /* of an earlier tenant */
    submit(A, id = last);
}
static void push_more(void)
{
    while (wh_client_fits(&A->client, 1))
        wh_client_push(&A->client, wh_id(0x7ffffffe, 0));
    wh_client_publish_lazily(&A->client);
}
static void verdict_drain(void)
{
    pass_all();
    check_event(A);
}

static void cancel(void)
{
    wh_client_cancel(&A->client, id);
    wh_client_publish_lazily(&A->client);
}

static void verdict_cancel(void)
{
    pass_all();
    reclaim();
    CHECK(hand_holds(A, wh_id_slot(id)), "a slot is lost");
}

static void nothing(void) {}
static void claim_a(void) { wh_slabs_claim(&A->client.slabs); }
static void claim_b(void) { wh_slabs_claim(&B->client.slabs); }
static void before_claim(void) { A->client.slabs.cursor = B->client.slabs.cursor = 0; }
static void verdict_claim(void)
{
    for (uint32_t slab = 0; slab < CAPACITY >> WH_SLAB_BITS; slab++)
        CHECK(!(A->client.slabs.free[slab] && B->client.slabs.free[slab]), "a slab of two");
}

/* A move that won: the old time is nobody's any more. */
static bool moved;

static void before_tick(void)
{
    due = 5 * MS;
    id = arm_for(A, 0, 50 * MS);
    submit(A, id);
    pass_all();
}
static void move(void)
{
    bool tell;
    moved = wh_client_move(&A->client, id, 105 * MS, 0, &tell);
}
static void move_unless_ticked(void)
{
    bool ticked =
        wh_load_relaxed(&w.clock.states[wh_id_slot(id)]) != wh_state(wh_id_gen(id), WH_ARMED);
    move();
    moved &= !ticked;
}
static void verdict_moved(void)
{
    CHECK(!moved || wh_client_ready(&A->client) == 0, "it came at the time that it was moved from");
    CHECK(!moved || w.clock.wheel.links[wh_id_slot(id)].completion == 0, "told of what never was");
    cancel();
    pass_all();
    receive_some();
    reclaim();
    CHECK(hand_holds(A, wh_id_slot(id)), "a slot is lost");
}

/* A does not read what it was offered, and B receives for the first time. */
static void before_first_receive(void)
{
    for (uint32_t row = 0; row < 2; row++)
        wh_clock_join(&w.clock, &w.peers[row], 1);
    wh_client_begin_to_receive(&A->client);
    due = 5 * MS;
    id = arm_for(A, wh_target_group(0, 0), 0);
    submit(A, id);
    pass_all();
    wh_bell_clear(w.bell[0]);
}
static void receive_first(void)
{
    wh_client_begin_to_receive(&B->client);
    waits = wh_client_may_sleep(&B->client);
    (void)wh_load_relaxed(&w.clock.seg->passes); /* what comes in between may come last, too */
}
static void fire_once(void) /* in the one pass before the clock sleeps */
{
    uint32_t reaped;
    for (int i = 0; i < WH_CLOCK_KINDS; i++)
        w.clock.now[i] = 6 * MS;
    wh_pass(&w.clock, &reaped);
}
static void verdict_first_receive(void)
{
    CHECK(wh_client_ready(&A->client) || wh_client_ready(&B->client), "nothing is offered");
    CHECK(!waits || rung(B->bell) || rung(w.bell[0]), "B sleeps beside what A does not read");
    free(w.clock.queue);
    w.clock.queue = NULL;
}

/* One winner. */
static bool won;

static void cancel_it(void)
{
    won = wh_client_cancel(&A->client, id);
    wh_client_publish_lazily(&A->client);
}
static void verdict_one_winner(void)
{
    pass_all();
    CHECK(wh_client_ready(&A->client) == !won, "cancelled and delivered, or neither");
    receive_some();
    reclaim();
    CHECK(hand_holds(A, wh_id_slot(id)), "a slot is lost");
}

/* A's timer ticks for B, or A was faster. */
static void before_foreign_tick(void)
{
    due = 5 * MS;
    id = arm_for(A, hand_target(B), 50 * MS);
    submit(A, id);
    pass_all();
}
static void verdict_cancelled_tick(void)
{
    wh_client_receive(&B->client, B->events, EVENTS_ROOM);
    pass_all();
    reclaim();
    CHECK(hand_holds(A, wh_id_slot(id)), "a slot is lost");
}

/* A slot in its second life is cancelled before the clock has met it; then the clock dies. */
static void before_second_life(void)
{
    due = 5 * MS;
    schedule_it();
    go_to(6 * MS);
    receive_some();
    uint32_t slot = wh_id_slot(id);
    wh_request r = {.deadline = 5000 * MS};
    A->client.slabs.free[slot >> WH_SLAB_BITS] &= ~(1ull << (slot & (WH_SLAB_SLOTS - 1)));
    id = wh_client_arm(&A->client, slot, &r);
    wh_client_push(&A->client, id);
    cancel();
}

/* -- a worker's slab is free only when all of it is settled ------------------------------------ */

/* A's whole share is armed; then it is gone, and nobody was told, or the clock was. */
static void before_orphan(void)
{
    due = 50 * MS;
    schedule_it();
    pass_all();
    w.peers[0].incarnation = 9; /* its row has another tenant */
    B->client.slabs.cursor = wh_id_slot(id) >> WH_SLAB_BITS;
    due = 20 * MS;
}
static void before_death(void)
{
    before_orphan();
    w.peers[0].incarnation = 1;
    wh_clock_detach(&w.peers[0], WH_LEAVE_DROP);
}
static void recover(void) { wh_clock_recover(&w.clock); }

static void claim_and_schedule(void)
{
    if (wh_load_relaxed(&w.clock.owners[wh_id_slot(id) >> WH_SLAB_BITS]))
        return;
    id = arm_for(B, 0, 0);
    submit(B, id);
}
static void verdict_slab(void)
{
    pass_all();
    if (wh_state_gen(id) > 1) { /* B came by it in the middle */
        check_event(B);
        return;
    }
    CHECK(wh_load_relaxed(&w.clock.owners[wh_id_slot(id) >> WH_SLAB_BITS]) == 0,
          "it is held still");
}

/* -- fields that change under the clock's eyes ------------------------------------------------- */

static void before_scribble(void)
{
    due = 5 * MS;
    id = arm_for(A, hand_target(B), MS);
    submit(A, id);
}
static void scribble(void)
{
    static const int64_t odd[] = {0, -1, 1, INT64_MIN, INT64_MAX, MS};
    wh_slot *s = &w.clock.slots[wh_id_slot(id)];
    int64_t value = odd[variant / 4 % 6];
    if (variant % 4 == 0)
        wh_store_relaxed(&s->deadline, value);
    else if (variant % 4 == 1)
        wh_store_relaxed(&s->interval, value);
    else if (variant % 4 == 2)
        wh_store_relaxed(&s->flags, (uint16_t)value);
    else
        wh_store_relaxed(&s->target, (uint32_t)value);
}
static void scribbled_turn(void)
{
    uint32_t reaped;
    wh_pass(&w.clock, &reaped);
    for (int i = 0; i < WH_CLOCK_KINDS; i++)
        w.clock.now[i] = 6 * MS;
    wh_pass(&w.clock, &reaped);
}

int main(int argc, char **argv)
{
    /* clang-format off */
    static const race races[] = {
        {.name = "a near timer as the clock falls asleep", .before = before_schedule, .operate = schedule_it,
         .meanwhile = turn, .verdict = verdict_schedule, .hold = true},
        {.name = "the clock falls asleep as a near timer comes", .before = before_schedule, .operate = fall_asleep,
         .meanwhile = schedule_it, .verdict = verdict_schedule, .hold = true},
        {.name = "a near timer as a new clock recovers", .before = before_schedule, .operate = schedule_it,
         .meanwhile = next_clock, .verdict = verdict_schedule, .hold = true},
        {.name = "a worker waits as its timer fires", .before = before_event, .operate = wait_for_event,
         .meanwhile = fire, .verdict = verdict_waits, .hold = true},
        {.name = "a timer fires as its worker waits", .before = before_event, .operate = fire,
         .meanwhile = wait_for_event, .verdict = verdict_waits, .hold = true},
        {.name = "a first-time member as an event is offered",
         .before = before_first_receive, .operate = receive_first, .meanwhile = fire_once,
         .verdict = verdict_first_receive, .hold = true},
        {.name = "an event is offered as a first-time member comes",
         .before = before_first_receive, .operate = fire_once, .meanwhile = receive_first,
         .verdict = verdict_first_receive, .hold = true},
        {.name = "room for the backlog as the clock falls asleep", .before = before_backlog, .operate = receive_some,
         .meanwhile = turn, .verdict = verdict_backlog, .hold = true},
        {.name = "the clock falls asleep as there is room", .before = before_full, .operate = fire_and_sleep,
         .meanwhile = receive_some, .verdict = verdict_backlog, .hold = true},
        {.name = "room in the ring as the clock fills it", .before = before_full, .operate = receive_some,
         .meanwhile = fire_and_sleep, .verdict = verdict_backlog, .hold = true},
        {.name = "room for returns as the clock fills them", .before = before_cancelled, .operate = reclaim,
         .meanwhile = turn, .verdict = verdict_returns, .hold = true},
        {.name = "room for returns as the clock falls asleep", .before = before_returns, .operate = reclaim,
         .meanwhile = turn, .verdict = verdict_returns, .hold = true},
        {.name = "a slot comes back as it is wanted", .before = before_return, .operate = pass_all,
         .meanwhile = reclaim, .verdict = verdict_return, .hold = true},
        {.name = "a cancel as the clock looks", .before = before_event, .operate = cancel,
         .meanwhile = pass_all, .verdict = verdict_cancel, .hold = true},
        {.name = "a full ring is drained as there is room", .before = before_drain, .operate = pass_all,
         .meanwhile = push_more, .verdict = verdict_drain, .hold = false},
        {.name = "a timer is moved as it fires", .before = before_event, .operate = move,
         .meanwhile = fire, .verdict = verdict_moved, .hold = true},
        {.name = "a timer fires as it is moved", .before = before_event, .operate = fire,
         .meanwhile = move, .verdict = verdict_moved, .hold = true},
        {.name = "a timer fires as it is cancelled", .before = before_event, .operate = fire,
         .meanwhile = cancel_it, .verdict = verdict_one_winner, .hold = true},
        {.name = "a timer is cancelled as it fires", .before = before_event, .operate = cancel_it,
         .meanwhile = fire, .verdict = verdict_one_winner, .hold = true},
        {.name = "a tick comes as its timer is moved", .before = before_tick, .operate = fire,
         .meanwhile = move_unless_ticked, .verdict = verdict_moved, .hold = true},
        {.name = "a tick comes as its timer is cancelled", .before = before_foreign_tick,
         .operate = fire, .meanwhile = cancel, .verdict = verdict_cancelled_tick, .hold = true},
        {.name = "the clock dies as it meets a second life", .before = before_second_life,
         .operate = pass_all, .meanwhile = next_clock, .verdict = verdict_cancel, .dies = true},
        {.name = "two claim one slab", .before = before_claim, .operate = claim_a,
         .meanwhile = claim_b, .verdict = verdict_claim, .hold = true},
        {.name = "a dead worker's slab as it is claimed", .before = before_death, .operate = pass_all,
         .meanwhile = claim_and_schedule, .verdict = verdict_slab, .hold = false},
        {.name = "nobody's slab as it is claimed", .before = before_orphan, .operate = recover,
         .meanwhile = claim_and_schedule, .verdict = verdict_slab, .hold = false},
        {.name = "fields change as the clock looks", .before = before_scribble, .operate = scribbled_turn,
         .meanwhile = scribble, .verdict = nothing, .variants = 24, .hold = false},
    };
    /* clang-format on */
    options_read(argc, argv);
    return races_run(races, sizeof races / sizeof *races);
}
