/* Recovery: what a new clock has to see to, and what comes late. One case each, in one thread; the
 * sweeps of tests/c/sweep go through everything else of it, instruction by instruction. */
#include "single.h"

static void begin_with(uint32_t capacity)
{
    single_make(
        3, (wh_config){.tick_ns = MS, .wheel_bits = 6, .capacity = capacity, .payload_bytes = 16});
}
static void begin(void) { begin_with(256); }

/* -- a new clock ------------------------------------------------------------------------------- */

/* A rang, the clock took the byte and died. A rings again for its next need. */
static void play_rung_for_the_dead(void)
{
    begin();
    world_settle(&w);
    CHECK(wh_may_sleep(&w.clock, INT64_MAX), "it could sleep");
    schedule(A, (plan){.delay = MS});
    CHECK(rung(w.bell[0]), "A does not ring");
    wh_bell_clear(w.bell[0]);
    new_clock();
    uint32_t reaped;
    wh_pass_all(&w.clock, &reaped);
    CHECK(wh_may_sleep(&w.clock, wh_wheel_next_ns(&w.clock.wheel)), "it could sleep");
    schedule(A, (plan){.delay = 0});
    CHECK(rung(w.bell[0]), "A takes its byte for one that is there still");
}

/* The dead clock wrote this, and did not ring. */
static void play_not_rung_by_the_dead(void)
{
    begin();
    CHECK(wh_client_may_sleep(&A->client), "A waits");
    new_clock();
    CHECK(rung(A->bell), "A sleeps on");
}

/* B reads the first of two loans, which is the one in the higher slot: it is returned at once. */
static void play_loans_in_order(void)
{
    char event[128];
    begin();
    uint64_t late = schedule(A, (plan){.delay = 2 * MS, .target = hand_target(B)});
    uint64_t soon = schedule(A, (plan){.delay = MS, .target = hand_target(B)});
    CHECK(wh_id_slot(id_of(soon)) > wh_id_slot(id_of(late)), "slots");
    world_advance_to(&w, MS);
    world_advance_to(&w, 2 * MS);
    CHECK(wh_client_receive(&B->client, event, 1) == 1, "no event");
    CHECK(((wh_completion *)event)->cookie == soon, "order");
    B->client.seg->comp_head--; /* read while the clock is away, so that both are on loan to it */
    new_clock();
    B->client.seg->comp_head++;
    world_settle(&w);
    CHECK(wh_client_returns_ready(&A->client) == 1,
          "a loan that is back waits for one that is not");
}

/* Backlogs go by the due time, not by the slot. */
static void play_backlog_in_order(void)
{
    begin();
    fill_events(0);
    uint64_t late = schedule(A, (plan){.delay = 2 * MS}), soon = schedule(A, (plan){.delay = MS});
    world_advance_to(&w, 3 * MS);
    new_clock();
    wh_client_receive(&A->client, A->events, EVENTS_ROOM);
    world_settle(&w);
    CHECK(wh_client_receive(&A->client, A->events, 1) == 1, "no event");
    CHECK(((wh_completion *)A->events)->cookie == soon && soon > late, "the later one comes first");
    entry_add(&book.entries[soon].events);
    settle_all();
}

/* Timers that fell due while there was no clock. */
static void play_late_ones_in_order(void)
{
    begin();
    uint64_t late = schedule(A, (plan){.delay = 9 * MS}),
             soon = schedule(A, (plan){.delay = 3 * MS});
    world_settle(&w);
    w.clock.now[WH_CLOCK_BASE] = 20 * MS;
    new_clock();
    world_settle(&w);
    CHECK(wh_client_receive(&A->client, A->events, 1) == 1, "no event");
    CHECK(((wh_completion *)A->events)->cookie == soon && soon > late, "the later one comes first");
}

/* A's tick waits behind its full ring, over the death of the clock. */
static void play_waiting_tick(void)
{
    begin();
    schedule(A, (plan){.delay = MS, .interval = 5 * MS});
    fill_events(0);
    world_advance_to(&w, 2 * MS);
    CHECK(wh_client_backlogged(&A->client), "nothing waits");
    new_clock();
    wh_client_receive(&A->client, A->events, EVENTS_ROOM);
    world_settle(&w);
    CHECK(wh_client_ready(&A->client) == 1, "no tick");
    world_advance_to(&w, 7 * MS);
    CHECK(wh_client_ready(&A->client) == 2, "no second tick");
}

/* A tick stands in B's ring as A cancels it and the clock dies: A has its slot back, B no event. */
static void play_tick_keeps_no_slot(void)
{
    begin();
    uint64_t cookie =
        schedule(A, (plan){.delay = MS, .interval = FAR_NS, .target = hand_target(B)});
    world_advance_to(&w, 2 * MS);
    CHECK(hand_cancel(A, cookie), "cancel");
    new_clock();
    world_settle(&w);
    CHECK(wh_client_returns_ready(&A->client) == 1, "the slot waits for B");
    CHECK(wh_client_ready(&B->client) == 1, "no tick");
    CHECK(wh_client_receive(&B->client, B->events, 1) == 0, "an event after its cancel");
}

/* -- what comes late --------------------------------------------------------------------------- */

/* B cancelled A's timer; its submission is seen when the slot has another tenant. */
static void play_late_cancel_of_an_earlier_tenant(void)
{
    begin();
    uint64_t cookie = schedule(A, (plan){.delay = MS});
    world_settle(&w);
    uint64_t id = id_of(cookie);
    CHECK(wh_client_cancel(&B->client, id), "cancel");
    account_cancelled(&book, cookie);
    world_advance_to(&w, 2 * MS); /* its bucket is due, so the clock has seen that already */
    wh_client_reclaim(&A->client);
    A->client.slabs.magazine[A->client.slabs.magazine_size++] = wh_id_slot(id); /* the next one */
    A->client.slabs.free[wh_id_slot(id) >> WH_SLAB_BITS] &= ~(1ull << (id & (WH_SLAB_SLOTS - 1)));
    uint64_t next = schedule(A, (plan){.delay = MS});
    CHECK(wh_id_slot(id_of(next)) == wh_id_slot(id), "another slot");
    world_settle(&w);
    wh_client_publish_lazily(&B->client);
    world_settle(&w);
    world_advance_to(&w, 4 * MS);
    settle_all();
    CHECK(entry_over(&book.entries[next]), "the next tenant is lost");
}

/* The same when nobody used the slot since: it is not returned twice. */
static void play_late_cancel_of_what_is_over(void)
{
    begin();
    uint64_t cookie = schedule(A, (plan){.delay = MS});
    world_settle(&w);
    CHECK(wh_client_cancel(&B->client, id_of(cookie)), "cancel");
    world_advance_to(&w, 2 * MS);
    CHECK(wh_client_returns_ready(&A->client) == 1, "not returned");
    wh_client_reclaim(&A->client);
    wh_client_publish_lazily(&B->client);
    world_settle(&w);
    CHECK(wh_client_returns_ready(&A->client) == 0, "returned twice");
}

/* A tick stands in A's ring when B cancels its timer: A does not see it any more. */
static void play_tick_of_a_cancelled_timer(void)
{
    begin();
    uint64_t cookie = schedule(A, (plan){.delay = MS, .interval = FAR_NS});
    world_advance_to(&w, 2 * MS);
    CHECK(hand_cancel(B, cookie), "cancel");
    CHECK(wh_client_ready(&A->client) == 1, "no tick");
    CHECK(wh_client_receive(&A->client, A->events, 1) == 0, "an event after its cancel");
}

/* A is gone, its row too; B reads what A had sent, after a clock's death: its slot is free then. */
static void play_loan_of_nobody(void)
{
    begin();
    uint64_t cookie = schedule(A, (plan){.delay = MS, .target = hand_target(B)});
    world_advance_to(&w, 2 * MS);
    wh_clock_detach(&w.peers[0], WH_LEAVE_DROP);
    world_settle(&w);
    CHECK(w.reaped[0] == 1, "A waits for B");
    new_clock();
    uint32_t slot = wh_list_first(&w.clock.wheel, wh_lent_list(&w.clock, &w.peers[1]));
    CHECK(slot != WH_NIL && wh_is_loose(&w.clock, slot), "a new clock lost the loan");
    CHECK(wh_client_receive(&B->client, B->events, 8) == 1, "B has lost its event");
    const wh_completion *event = (const wh_completion *)B->events;
    CHECK(event->cookie == cookie, "another timer's event");
    world_settle(&w);
    CHECK(wh_load_acquire(&w.clock.owners[slot >> WH_SLAB_BITS]) == 0, "its slab is lost");
}

/* A's event was for B, whose row has another tenant now: it is A's own. */
static void play_target_of_another_tenant(void)
{
    begin();
    schedule(A, (plan){.delay = 5 * MS, .target = hand_target(B)});
    world_settle(&w);
    kill_hand(B);
    next_tenant(B);
    world_advance_to(&w, 6 * MS);
    CHECK(wh_client_ready(&B->client) == 0, "a stranger has it");
    CHECK(wh_client_ready(&A->client) == 1, "it is nobody's");
}

/* A slot waits to be returned to A, whose ring is full; A dies, B inherits that slab, but the rest
 * is kept, as B leaves the group. A's successor makes room: the slot is B's, who uses it by now. */
static void play_hint_of_a_reassigned_slot(void)
{
    uint32_t reaped;
    begin_with(8192); /* two pieces of the sweep */
    wh_peer *peer = &w.peers[0];
    A->client.slabs.cursor = 0;
    uint64_t cookie = schedule(A, (plan){.delay = FAR_NS});
    uint32_t slot = wh_id_slot(id_of(cookie));
    A->client.slabs.cursor = 100;
    CHECK(wh_slabs_claim(&A->client.slabs) && slot < 64, "slabs");
    world_settle(&w);
    fill_returns(WH_NIL);
    CHECK(hand_cancel(A, cookie), "cancel");
    world_settle(&w);
    CHECK(peer->returns_tail == 1, "it does not wait");
    peer->groups = w.peers[1].groups = 1;
    wh_clock_detach(peer, WH_LEAVE_REROUTE);
    wh_pass(&w.clock, &reaped);
    w.peers[1].groups = 0;
    world_settle(&w);
    CHECK(peer->life == WH_PEER_ABSENT, "A is not kept");
    wh_client_reclaim(&B->client);
    CHECK(wh_client_owns(&B->client, slot), "B has not inherited");
    wh_request far = {.deadline = FAR_NS};
    uint64_t id = wh_client_arm(&B->client, slot, &far);
    wh_client_push(&B->client, id);
    wh_client_publish(&B->client, FAR_NS);
    world_settle(&w);
    wh_store_seq(&A->client.seg->ret_head, peer->ret_tail); /* A's successor has read it all */
    world_settle(&w);
    CHECK(wh_client_cancel(&B->client, id), "cancel");
    wh_client_publish_lazily(&B->client);
    world_settle(&w);
    CHECK(wh_client_returns_ready(&B->client) == 1, "B's slot is lost");
}

/* -- who takes over a dead worker's slabs ------------------------------------------------------ */

/* A had its event; then it dies, and B inherits the slot, not the event. */
static void play_read_before_death(void)
{
    begin();
    schedule(A, (plan){.delay = MS});
    world_advance_to(&w, 2 * MS);
    CHECK(hand_receive(A) == 1, "no event");
    reassign_to_b();
    CHECK(w.reaped[0] == 1, "A is never reaped");
    CHECK(wh_client_ready(&B->client) == 0, "B gets what A had");
    CHECK(wh_client_returns_ready(&B->client) == 64, "%llu slots of 64",
          (ull)wh_client_returns_ready(&B->client));
}

/* B reads what A lent it when the slot is its own already: it gets it once, as all of the slab. */
static void play_lent_to_the_successor(void)
{
    begin();
    uint64_t cookie = schedule(A, (plan){.delay = MS, .target = hand_target(B)});
    uint32_t slot = wh_id_slot(id_of(cookie));
    world_advance_to(&w, 2 * MS);
    reassign_to_b();
    wh_client_receive(&B->client, B->events, EVENTS_ROOM);
    CHECK(((wh_completion *)B->events)->cookie == cookie, "no event");
    bool at_once = hand_holds(B, slot);
    passes(4);
    uint64_t returned = wh_client_returns_ready(&B->client), times = 0;
    for (uint64_t i = 0; i < returned; i++)
        times += wh_load_relaxed(&B->client.rets[B->client.ret_head + i]) == slot;
    CHECK(times + at_once == 1, "it gets the slot %llu times", (ull)times + at_once);
}

/* -- a neighbour that scribbles ---------------------------------------------------------------- */

/* A tail that says more than the ring holds is one offence, not work for ever. */
static void play_scribbled_tail(void)
{
    uint32_t reaped;
    bool more = true;
    begin();
    wh_store_seq(&A->client.seg->sub_tail, A->client.sub_tail + (1ull << 40));
    for (int pass = 0; pass < 10; pass++)
        more = wh_pass(&w.clock, &reaped);
    CHECK(!more, "the clock is busy with it for ever");
    CHECK(wh_load_relaxed(&w.peers[0].port->offences) == 1, "no offence");
}

/* A head beyond the tail makes no room. */
static void play_scribbled_head(void)
{
    begin();
    world_settle(&w);
    wh_store_seq(&A->client.seg->comp_head, A->client.comp_head + 100);
    w.peers[0].comp_head += 100;
    schedule(A, (plan){.delay = 0});
    world_settle(&w);
    CHECK(wh_client_ready(&A->client) == 0, "a record where there was no room");
}

/* A's timer for B says that its payload is bigger than a slot's. */
static void play_scribbled_size(void)
{
    static char events[512];
    begin();
    uint64_t cookie =
        schedule(A, (plan){.delay = MS, .target = hand_target(B), .payload_size = 16});
    wh_store_relaxed(&w.clock.slots[wh_id_slot(id_of(cookie))].payload_size, 200);
    world_advance_to(&w, 2 * MS);
    memset(events, 0x55, sizeof events);
    CHECK(wh_client_receive(&B->client, events, 1) == 1, "no event");
    for (size_t at = wh_event_bytes(&B->client); at < sizeof events; at++)
        CHECK(events[at] == 0x55, "byte %zu behind the event was written", at);
}

/* A timer that fell due while there was no clock is late by the time since; the longest is kept,
 * over further deaths, too. */
static void play_lateness(void)
{
    begin();
    schedule(A, (plan){.delay = 5 * MS});
    schedule(A, (plan){.delay = 900 * MS});
    world_settle(&w);
    int64_t died = w.clock.now[WH_CLOCK_BASE];
    const wh_au64 *late = &w.clock.seg->wake_late_ns;
    new_clock_at(died);
    CHECK(wh_load_relaxed(late) == 0, "late before anything was due");
    new_clock_at(died + 605 * MS);
    CHECK(wh_load_relaxed(late) == 600 * MS, "late by %lu ns", wh_load_relaxed(late));
    uint32_t reaped;
    wh_pass_all(&w.clock, &reaped);
    new_clock_at(died + 905 * MS);
    CHECK(wh_load_relaxed(late) == 600 * MS, "not the longest, but %lu ns", wh_load_relaxed(late));
}

int main(int argc, char **argv)
{
    static const single_case cases[] = {
        {"who rang for the dead clock rings for the new one", play_rung_for_the_dead},
        {"the new clock rings once", play_not_rung_by_the_dead},
        {"loans are in the order of the ring", play_loans_in_order},
        {"backlogs are in the order of their due times", play_backlog_in_order},
        {"late ones are in the order of their due times", play_late_ones_in_order},
        {"a tick waits", play_waiting_tick},
        {"a tick keeps no slot", play_tick_keeps_no_slot},
        {"late cancel of an earlier tenant", play_late_cancel_of_an_earlier_tenant},
        {"late cancel of what is over", play_late_cancel_of_what_is_over},
        {"a tick of a cancelled timer", play_tick_of_a_cancelled_timer},
        {"the last loan of a dead owner", play_loan_of_nobody},
        {"a hint of a slot that was reassigned", play_hint_of_a_reassigned_slot},
        {"the target's row has another tenant", play_target_of_another_tenant},
        {"what was read before a death", play_read_before_death},
        {"lent to the successor", play_lent_to_the_successor},
        {"a scribbled tail", play_scribbled_tail},
        {"a scribbled head", play_scribbled_head},
        {"a scribbled size", play_scribbled_size},
        {"how late the first one is", play_lateness},
    };
    return cases_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
