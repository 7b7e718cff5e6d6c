/* Corners: deaths that cross, loans at the end of their reader, the ends of time. One case each. */
#include "single.h"

static void begin(uint32_t capacity, int64_t tick_ns)
{
    single_make(
        3, (wh_config){
               .tick_ns = tick_ns, .wheel_bits = 6, .capacity = capacity, .payload_bytes = 16});
}

/* A's completion ring is full of what it does not read. */
static void fill_ring_of_a(void)
{
    for (uint64_t i = 0; i < A->client.comp_size; i++) {
        schedule(A, (plan){.delay = 0});
        if (i % 256 == 255)
            world_settle(&w);
    }
    world_settle(&w);
    CHECK(wh_client_ready(&A->client) == A->client.comp_size, "%llu completions",
          (ull)wh_client_ready(&A->client));
}

/* -- deaths ------------------------------------------------------------------------------------ */

/* Each holds an unread event of the other's timer. */
static void play_mutual_loans(void)
{
    begin(4096, MS);
    schedule(A, (plan){.delay = MS, .target = hand_target(B)});
    schedule(B, (plan){.delay = MS, .target = hand_target(A)});
    world_advance_to(&w, 2 * MS);
    wh_clock_detach(&w.peers[0], WH_LEAVE_DROP);
    wh_clock_detach(&w.peers[1], WH_LEAVE_DROP);
    passes(64);
    CHECK(w.reaped[0] == 1 && w.reaped[1] == 1, "reaped: A %u, B %u", w.reaped[0], w.reaped[1]);
}

static uint64_t owner_of(uint32_t slot) { return wh_load_acquire(&w.clock.owners[slot >> 6]); }

/* The owner ends, and waits for nobody; what its reader B has not read is B's until B ends, too. */
static void play_owner_then_reader(void)
{
    begin(4096, MS);
    schedule(A, (plan){.delay = MS, .target = hand_target(B)});
    world_advance_to(&w, 2 * MS);
    uint32_t slot = wh_list_first(&w.clock.wheel, wh_lent_list(&w.clock, &w.peers[1]));
    wh_clock_detach(&w.peers[0], WH_LEAVE_DROP);
    passes(64);
    CHECK(w.reaped[0] == 1, "A waits for B");
    CHECK(wh_load_relaxed(&w.peers[1].port->backlog) == 0, "B is said to have a backlog");
    CHECK(owner_of(slot) == WH_SPLIT && wh_is_loose(&w.clock, slot), "B still copies its payload");
    wh_clock_detach(&w.peers[1], WH_LEAVE_DROP);
    passes(64);
    CHECK(w.reaped[1] == 1, "B was not reaped");
    CHECK(owner_of(slot) == 0, "the slab is lost");
}

/* B's tick waits behind A's full ring; B cancels, and A dies before the clock has looked. */
static void play_cancel_as_reader_dies(void)
{
    begin(4096, MS);
    fill_ring_of_a();
    uint64_t cookie =
        schedule(B, (plan){.delay = MS, .interval = FAR_NS, .target = hand_target(A)});
    world_advance_to(&w, 2 * MS);
    CHECK(hand_cancel(B, cookie), "cancel");
    kill_hand(A);
    settle_all();
    check_idle(B);
}

/* The same when B's slab was swept already and B's submission is not met before A is gone. */
static void play_cancel_after_sweep(void)
{
    uint32_t reaped;
    begin(8192, MS); /* two pieces of the sweep, one per pass */
    fill_ring_of_a();
    uint64_t cookie =
        schedule(B, (plan){.delay = MS, .interval = FAR_NS, .target = hand_target(A)});
    world_advance_to(&w, 2 * MS);
    wh_clock_detach(&w.peers[0], WH_LEAVE_DROP);
    wh_pass(&w.clock, &reaped);
    CHECK(reaped == WH_NIL, "one piece was all");
    CHECK(hand_cancel(B, cookie), "cancel");
    kill_hand(A);
    settle_all();
    check_idle(B);
}

/* receive.h, invariant 2: an unread tick does not hold up the sweep of its dead owner, and is none
 * then. */
static void play_tick_of_dead_owner(void)
{
    begin(4096, MS);
    plan p = {.delay = MS, .interval = FAR_NS, .target = hand_target(A), .payload_size = 16};
    uint64_t id = id_of(schedule(B, p));
    world_advance_to(&w, 2 * MS);
    CHECK(wh_client_ready(&A->client) == 1, "no tick");
    wh_clock_detach(&w.peers[1], WH_LEAVE_DROP);
    passes(8);
    CHECK(w.reaped[1] == 1, "B is never reaped");
    CHECK(wh_load_relaxed(&w.clock.owners[wh_id_slot(id) >> WH_SLAB_BITS]) == 0,
          "its slab is kept");
    CHECK(wh_client_receive(&A->client, A->events, 1) == 0, "a tick of a timer that was dropped");
}

/* A worker dies while much of what it owns waits in its queue of returns. */
static void play_returns_of_dead_owner(void)
{
    begin(4096, MS);
    static uint64_t cookies[3000];
    for (int i = 0; i < 3000; i++) {
        cookies[i] = schedule(A, (plan){.delay = FAR_NS});
        if (i % 256 == 255)
            world_settle(&w);
    }
    for (int i = 0; i < 3000; i++) {
        CHECK(hand_cancel(A, cookies[i]), "cancel");
        if (i % 256 == 255)
            world_settle(&w);
    }
    world_settle(&w);
    kill_hand(A);
    next_tenant(A);
    uint32_t count = count_claimable(A);
    CHECK(count == 4096, "%u slots of 4096", count);
}

/* -- sleep ------------------------------------------------------------------------------------- */

/* A made room just before the clock said that it wants to be told: A does not ring, so the clock
 * has to see the room itself before it sleeps. */
static void play_room_before_sleep(void)
{
    begin(4096, MS);
    fill_ring_of_a();
    schedule(A, (plan){.delay = 0});
    world_settle(&w);
    CHECK(wh_client_backlogged(&A->client), "nothing waits");
    CHECK(wh_may_sleep(&w.clock, INT64_MAX), "the ring is full: it could sleep");
    wh_awake(&w.clock);
    wh_store_seq(&A->client.seg->comp_head, A->client.comp_head + 1);
    CHECK(!wh_may_sleep(&w.clock, INT64_MAX), "sleeps, and the event waits for ever");
    wh_awake(&w.clock);
}

/* The same for a submission that came when the clock was about to sleep. */
static void play_submission_before_sleep(void)
{
    begin(4096, MS);
    world_settle(&w);
    CHECK(wh_may_sleep(&w.clock, INT64_MAX), "nothing to do: it could sleep");
    wh_awake(&w.clock);
    schedule(A, (plan){.delay = MS});
    CHECK(!wh_may_sleep(&w.clock, INT64_MAX), "sleeps over a submission");
    wh_awake(&w.clock);
}

/* The same for an ask for slots. */
static void play_ask_before_sleep(void)
{
    begin(4096, MS);
    world_settle(&w);
    wh_client_ask(&A->client, 1, false);
    CHECK(!wh_may_sleep(&w.clock, INT64_MAX), "sleeps over an ask");
    wh_awake(&w.clock);
}

/* A slot is taken over before its return was read, and handed to the same worker again. That worker
 * reads the old entry when the clock has named it holder already, and before the new entry is
 * out. */
static void play_old_news(void)
{
    begin(4096, MS);
    wh_slabs *slabs = &B->client.slabs;
    uint64_t taken[WH_SLAB_SLOTS];
    CHECK(wh_client_claim(&B->client), "no slab");
    CHECK(wh_slabs_take_many(slabs, taken, WH_SLAB_SLOTS) == WH_SLAB_SLOTS, "it has not all slots");
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++) {
        wh_request r = {.deadline = FAR_NS};
        uint64_t id = wh_client_arm(&B->client, (uint32_t)taken[i], &r);
        wh_client_push(&B->client, id);
        CHECK(i == 0 || wh_client_cancel(&B->client, id), "cancelled"); /* all but one */
    }
    wh_client_publish(&B->client, FAR_NS);
    wh_slabs_park(slabs);
    world_settle(&w);
    CHECK(wh_client_returns_ready(&B->client) == WH_SLAB_SLOTS - 1,
          "they came back, and are not read");
    wh_client_ask(&A->client, 10, false);
    world_settle(&w);
    CHECK(w.clock.free_list.slots == WH_SLAB_SLOTS - 11, "the rest is in the free list");
    wh_peer *peer = &w.peers[B->row];
    uint32_t slot = wh_free_list_take(&w.clock);
    wh_put_returned(&w.clock, peer, slot);
    wh_client_reclaim(&B->client);
    CHECK(!hand_holds(B, slot), "believed before it came");
    wh_publish(&w.clock, peer);
    wh_client_reclaim(&B->client);
    CHECK(hand_holds(B, slot), "handed over, and lost");
}

/* -- buggy neighbours -------------------------------------------------------------------------- */

/* A gives a slab back while a timer of it is linked. B, who got the slot, must keep its timer. */
static void play_premature_slab(void)
{
    begin(4096, MS);
    uint64_t of_a = schedule(A, (plan){.delay = 5 * MS});
    world_settle(&w);
    uint32_t slot = wh_id_slot(id_of(of_a));
    wh_store_release(&w.clock.owners[slot >> WH_SLAB_BITS], 0);
    B->client.slabs.cursor = slot >> WH_SLAB_BITS;
    CHECK(wh_slabs_claim(&B->client.slabs), "claim");
    uint64_t of_b = schedule(B, (plan){.delay = 10 * MS});
    CHECK(wh_id_slot(id_of(of_b)) == slot, "another slot");
    wh_store_seq(&B->client.seg->sub_tail, B->client.sub_tail - 1); /* not published yet */
    world_advance_to(&w, 6 * MS);
    wh_store_seq(&B->client.seg->sub_tail, B->client.sub_tail);
    world_advance_to(&w, 11 * MS);
    hand_receive(B);
    CHECK(entry_over(&book.entries[of_b]), "B's timer was dropped with A's");
}

/* -- ends of time ------------------------------------------------------------------------------ */

static void play_end_of_time(void)
{
    begin(4096, 1);
    schedule(A, (plan){.delay = MS, .interval = INT64_MAX / 2});
    schedule(A, (plan){.delay = INT64_MAX});
    world_advance_to(&w, INT64_MAX);
    CHECK(wh_client_ready(&A->client) < 8, "%llu events", (ull)wh_client_ready(&A->client));
}

static void play_before_time(void)
{
    const int64_t interval = 1ll << 33; /* so many ticks are missed that one record counts them */
    begin(4096, MS);
    world_advance_to(&w, 10 * MS);
    uint64_t id = arm(A, (wh_request){.deadline = INT64_MIN + 5, .interval = interval});
    world_settle(&w);
    CHECK(wh_client_ready(&A->client) == 1, "%llu ticks", (ull)wh_client_ready(&A->client));
    int64_t due = w.clock.wheel.links[wh_id_slot(id)].due;
    CHECK(due <= 10 * MS, "link.due is in the future");
    CHECK(due > 10 * MS - interval, "link.due went back");
}

/* payload_size has 16 bits: what they can say comes through whole. */
static void play_largest_payload(void)
{
    static char payload[65528], event[65528 + sizeof(wh_completion)];
    single_make(
        1, (wh_config){
               .tick_ns = MS, .wheel_bits = 6, .capacity = 64, .payload_bytes = sizeof payload});
    memset(payload, 7, sizeof payload);
    arm(A, (wh_request){.payload = payload, .payload_size = sizeof payload});
    world_settle(&w);
    CHECK(wh_client_receive(&A->client, event, 1) == 1, "no event");
    CHECK(memcmp(event + sizeof(wh_completion), payload, sizeof payload) == 0, "another payload");
}

int main(int argc, char **argv)
{
    static const single_case cases[] = {
        {"both die, each on loan to the other", play_mutual_loans},
        {"reader dies after the owner", play_owner_then_reader},
        {"cancel of a waiting tick as its reader dies", play_cancel_as_reader_dies},
        {"cancel of a waiting tick after the sweep", play_cancel_after_sweep},
        {"unread tick of a dead owner", play_tick_of_dead_owner},
        {"owner dies with a queue of returns", play_returns_of_dead_owner},
        {"room is made as the clock falls asleep", play_room_before_sleep},
        {"a submission as the clock falls asleep", play_submission_before_sleep},
        {"an ask as the clock falls asleep", play_ask_before_sleep},
        {"an old entry of the return ring, and a new one", play_old_news},
        {"slab given back while a timer is linked", play_premature_slab},
        {"periodic timer at the end of time", play_end_of_time},
        {"periodic timer from before time", play_before_time},
        {"largest payload", play_largest_payload},
    };
    return cases_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
