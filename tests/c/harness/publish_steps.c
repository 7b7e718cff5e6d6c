/* Publish steps: half-written states, set by hand. A worker stops after each single step of what it
 * does; the clock reaps it, the others go on, the account is exact and no slot is lost.
 *
 * A is the worker that stops, B the one that goes on; each owns timers that the other touches. */
#include "single.h"

static world w;
static account book;
static hand hands[2];
#define A (&hands[0])
#define B (&hands[1])

static uint32_t step; /* after how many steps A stops */

static void begin(void)
{
    wh_config config = {.tick_ns = MS, .wheel_bits = 6, .capacity = 256, .payload_bytes = 16};
    single_make(&w, &book, hands, 2, &config);
}

/* A has stopped. All of B's timers end, by cancel or event; then a newcomer gets every slot. */
static void end(void)
{
    hand *both[2] = {NULL, B};
    uint64_t cookie;
    kill_hand(A);
    settle_all(&w, both, 2);
    for (int i = 0; i < 100; i++) {
        plan p = {.delay = i % 3 * MS, .payload_size = 16};
        CHECK(hand_schedule(B, p, &cookie), "no slot");
        settle_all(&w, both, 2);
    }
    world_advance_to(&w, world_now(&w) + 10 * MS);
    settle_all(&w, both, 2);
    for (uint64_t i = 8192; i < B->next; i++)
        if (!entry_over(&book.entries[i]))
            CHECK(hand_cancel(B, i), "%llu neither ended nor can it be cancelled", (ull)i);
    settle_all(&w, both, 2);
    account_balance(&book);
    if (!hand_idle(B))
        hand_print_missing(B);
    CHECK(hand_idle(B), "a slot of B is lost");
    uint64_t linked;
    request_check(&w, &linked);
    CHECK(linked == 0, "%llu timers linked in the end", (ull)linked);
    hand_free(A);
    hand_attach(A, &w, &book, 0, 9);
    uint32_t of_a = count_claimable(A), of_b = count_claimable(B);
    CHECK(of_a + of_b == 256, "%u slots of 256 are left", of_a + of_b);
}

/* -- schedule ---------------------------------------------------------------------------------- */

enum { SCHEDULE_STEPS = 10 };

static void schedule_until(int64_t deadline)
{
    wh_client *c = &A->client;
    uint32_t slot = hand_slot(A), at = 0; /* step 0: claimed */
    wh_slot *s = &c->slots[slot];
    uint64_t id = 0;
    if (at++ < step)
        wh_store_relaxed(&s->deadline, deadline);
    if (at++ < step)
        wh_store_relaxed(&s->interval, 5 * MS);
    if (at++ < step)
        wh_store_relaxed(&s->cookie, A->next);
    if (at++ < step)
        wh_store_relaxed(&s->target, hand_target(B));
    if (at++ < step)
        memset(c->payloads + slot * 16, 7, 16);
    if (at++ < step) {
        wh_request r = {.deadline = deadline, .cookie = A->next};
        id = wh_client_arm(c, slot, &r);
        wh_store_relaxed(&book.entries[A->next].wanted, deadline);
        wh_store_relaxed(&book.entries[A->next++].id, id);
    }
    if (at++ < step)
        wh_client_push(c, id);
    if (at++ < step)
        wh_client_publish(c, deadline);
    if (at++ < step)
        world_settle(&w); /* linked */
    if (at++ < step)
        world_advance_to(&w, MS * 1000); /* fired, not received */
}

static void play_schedule(void)
{
    uint64_t cookie;
    begin();
    CHECK(hand_schedule(A, (plan){.delay = FAR_NS}, &cookie), "no slot");
    world_settle(&w);
    CHECK(hand_cancel(A, cookie), "cancel"); /* so the next one goes to a used slot too */
    schedule_until(world_now(&w) + 20 * MS);
    end();
}

/* -- cancel ------------------------------------------------------------------------------------ */

enum { CANCEL_STEPS = 4 };

static void cancel_until(uint64_t cookie)
{
    uint64_t id = wh_load_relaxed(&book.entries[cookie].id);
    uint32_t slot = wh_id_slot(id), at = 0;
    if (at++ < step) {
        CHECK(wh_slot_cancel(&A->client.states[slot], wh_id_gen(id)), "cancel");
        account_cancelled(&book, cookie);
    }
    if (at++ < step)
        wh_client_push(&A->client, wh_id_with(id, WH_OP_CANCEL));
    if (at++ < step)
        wh_client_publish_lazily(&A->client);
    if (at++ < step)
        world_settle(&w);
}

/* B's timer, far away: A's death must not keep its slot until then. */
static void play_cancel_linked(void)
{
    uint64_t cookie;
    begin();
    CHECK(hand_schedule(B, (plan){.delay = FAR_NS}, &cookie), "no slot");
    world_settle(&w);
    cancel_until(cookie);
    end();
}

static void play_cancel_unseen(void)
{
    uint64_t cookie;
    begin();
    CHECK(hand_schedule(B, (plan){.delay = FAR_NS}, &cookie), "no slot");
    cancel_until(cookie);
    end();
}

static void play_cancel_periodic(void)
{
    uint64_t cookie;
    begin();
    plan p = {.delay = MS, .interval = FAR_NS, .target = hand_target(A), .payload_size = 16};
    CHECK(hand_schedule(B, p, &cookie), "no slot");
    world_advance_to(&w, 2 * MS); /* a tick of it stands in A's ring */
    cancel_until(cookie);
    end();
}

/* -- move -------------------------------------------------------------------------------------- */

enum { MOVE_STEPS = 5 };

static void play_move(void)
{
    uint64_t cookie;
    uint32_t at = 0;
    begin();
    CHECK(hand_schedule(A, (plan){.delay = 500 * MS}, &cookie), "no slot");
    world_settle(&w);
    uint64_t id = wh_load_relaxed(&book.entries[cookie].id);
    wh_au64 *word = &A->client.states[wh_id_slot(id)];
    uint64_t state = wh_load_acquire(word);
    if (at++ < step)
        wh_store_relaxed(&A->client.slots[wh_id_slot(id)].deadline, MS);
    if (at++ < step)
        CHECK(wh_cas_acq_rel(word, &state, wh_state_moved(state)), "moved");
    if (at++ < step)
        wh_client_push(&A->client, wh_id_with(id, WH_OP_RESCHEDULE));
    if (at++ < step)
        wh_client_publish(&A->client, MS);
    if (at++ < step)
        world_settle(&w);
    end();
}

/* -- receive ----------------------------------------------------------------------------------- */

enum { RECEIVE_STEPS = 3 };

/* B's timer fires into A's ring; what A has not passed with its head goes back to B. */
static void play_receive(void)
{
    uint64_t cookie;
    char event[128];
    wh_look look = {0};
    begin();
    plan p = {.delay = MS, .target = hand_target(A), .payload_size = 16};
    CHECK(hand_schedule(B, p, &cookie), "no slot");
    CHECK(hand_schedule(A, (plan){.delay = MS}, &cookie), "no slot");
    world_advance_to(&w, 2 * MS);
    wh_client *c = &A->client;
    uint32_t at = 0;
    CHECK(wh_client_ready(c) == 2, "%llu events", (ull)wh_client_ready(c));
    uint64_t position = c->comp_head;
    position += c->comps[position & (c->comp_size - 1)].cookie < 8192; /* B's */
    if (at++ < step)
        CHECK(wh_client_take(c, position, wh_client_id_at(c, position, position), event, &look),
              "take");
    if (at++ < step)
        c->comp_head += 2;
    if (at++ < step) {
        wh_store_seq(&c->seg->comp_head, c->comp_head);
        account_event(&book, (const wh_completion *)event);
        entry_add(&book.entries[cookie].dropped); /* A's own went with it */
    }
    end();
}

/* -- all --------------------------------------------------------------------------------------- */

static int sweep(const char *name, void (*play)(void), uint32_t steps)
{
    int failed = 0;
    for (step = 0; step <= steps; step++) {
        char text[64];
        snprintf(text, sizeof text, "%s, stopped after step %u", name, step);
        failed += !case_run(&(single_case){text, play});
    }
    return failed;
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    opt.jitter = 0; /* one thread */
    int failed = sweep("schedule", play_schedule, SCHEDULE_STEPS);
    failed += sweep("cancel of a linked timer", play_cancel_linked, CANCEL_STEPS);
    failed += sweep("cancel of an unseen timer", play_cancel_unseen, CANCEL_STEPS);
    failed += sweep("cancel of a periodic timer", play_cancel_periodic, CANCEL_STEPS);
    failed += sweep("move", play_move, MOVE_STEPS);
    failed += sweep("receive", play_receive, RECEIVE_STEPS);
    printf(failed ? "FAIL: %d cases\n" : "ok\n", failed);
    return failed != 0;
}
