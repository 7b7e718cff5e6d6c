/* Publish steps: half-written states, set by hand. A worker stops after each single step of what it
 * does; the clock reaps it, the others go on, the account is exact and no slot is lost.
 *
 * A is the worker that stops, B the one that goes on; each owns timers that the other touches. */
#include "single.h"

static uint32_t step; /* after how many steps A stops */
static uint64_t heard; /* the timer that others must have received in the end; or WH_NIL */

static void begin_with(uint32_t rows)
{
    heard = WH_NIL;
    single_make(rows,
                (wh_config){.tick_ns = MS, .wheel_bits = 6, .capacity = 256, .payload_bytes = 16});
}
static void begin(void) { begin_with(2); }

/* A has stopped. All of B's timers end, by cancel or event; then a newcomer gets every slot. */
static void end(void)
{
    kill_hand(A);
    settle_all();
    for (int i = 0; i < 100; i++) {
        schedule(B, (plan){.delay = i % 3 * MS, .payload_size = 16});
        settle_all();
    }
    world_advance_to(&w, world_now(&w) + 10 * MS);
    settle_all();
    CHECK(heard == WH_NIL || entry_over(&book.entries[heard]), "%llu was lost", (ull)heard);
    for (uint64_t i = SHARE; i < B->next; i++)
        if (!entry_over(&book.entries[i]))
            CHECK(hand_cancel(B, i), "%llu neither ended nor can it be cancelled", (ull)i);
    settle_all();
    account_balance(&book);
    check_idle(B);
    check_empty();
    next_tenant(A);
    uint32_t of_a = count_claimable(A), of_b = count_claimable(B);
    CHECK(of_a + of_b == 256, "%u slots of 256 are left", of_a + of_b);
}

/* -- schedule ---------------------------------------------------------------------------------- */

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
    begin();
    uint64_t cookie = schedule(A, (plan){.delay = FAR_NS});
    world_settle(&w);
    CHECK(hand_cancel(A, cookie), "cancel"); /* so the next one goes to a used slot too */
    schedule_until(world_now(&w) + 20 * MS);
    end();
}

/* -- cancel ------------------------------------------------------------------------------------ */

static void cancel_until(uint64_t cookie)
{
    uint64_t id = id_of(cookie);
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
    begin();
    uint64_t cookie = schedule(B, (plan){.delay = FAR_NS});
    world_settle(&w);
    cancel_until(cookie);
    end();
}

static void play_cancel_unseen(void)
{
    begin();
    uint64_t cookie = schedule(B, (plan){.delay = FAR_NS});
    cancel_until(cookie);
    end();
}

static void play_cancel_periodic(void)
{
    begin();
    plan p = {.delay = MS, .interval = FAR_NS, .target = hand_target(A), .payload_size = 16};
    uint64_t cookie = schedule(B, p);
    world_advance_to(&w, 2 * MS); /* a tick of it stands in A's ring */
    cancel_until(cookie);
    end();
}

/* -- move -------------------------------------------------------------------------------------- */

static void play_move(void)
{
    uint32_t at = 0;
    begin();
    uint64_t id = id_of(schedule(A, (plan){.delay = 500 * MS}));
    world_settle(&w);
    bool tell;
    if (at++ < step)
        CHECK(wh_client_move(&A->client, id, MS, 0, &tell) && tell, "moved");
    if (at++ < step)
        wh_client_push(&A->client, wh_id_with(id, WH_OP_RESCHEDULE));
    if (at++ < step)
        wh_client_publish(&A->client, MS);
    if (at++ < step)
        world_settle(&w);
    end();
}

/* -- receive ----------------------------------------------------------------------------------- */

/* B's timer fires into A's ring; what A has not passed with its head goes back to B. */
static void play_receive(void)
{
    char event[128];
    wh_look look = {0};
    begin();
    plan p = {.delay = MS, .target = hand_target(A), .payload_size = 16};
    schedule(B, p);
    uint64_t cookie = schedule(A, (plan){.delay = MS});
    world_advance_to(&w, 2 * MS);
    wh_client *c = &A->client;
    uint32_t at = 0;
    CHECK(wh_client_ready(c) == 2, "%llu events", (ull)wh_client_ready(c));
    uint64_t position = c->comp_head;
    position += c->comps[position & (c->comp_size - 1)].cookie < SHARE; /* B's */
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

/* -- ends for a group that are held ------------------------------------------------------------ */

#define BOUND (20 * MS)

/* An end of B's timer for the group stands in A's ring; behind this, B is a member, too. */
static uint64_t offer_to_a(plan p)
{
    begin();
    CHECK(wh_clock_join(&w.clock, &w.peers[0], 1), "join");
    p.target = wh_target_group(0, 0);
    p.payload_size = 16;
    uint64_t cookie = heard = schedule(B, p);
    world_advance_to(&w, 2 * MS);
    CHECK(wh_client_ready(&A->client) == 1, "the end is not A's");
    CHECK(wh_clock_join(&w.clock, &w.peers[1], 1), "join");
    return cookie;
}

/* A holds it. Returns its event. */
static const wh_completion *held_by_a(plan p)
{
    offer_to_a(p);
    A->client.visibility = BOUND;
    CHECK(wh_client_hold(&A->client, A->events, 1) == 1, "hold");
    return (const wh_completion *)A->events;
}

/* Whatever step A has come to, the end is B's once A is gone. */
static void play_hold(void)
{
    uint32_t at = 0;
    wh_client *c = &A->client;
    uint64_t id = id_of(offer_to_a((plan){.delay = MS}));
    if (at++ < step)
        wh_store_relaxed(&c->seg->visibility, (uint64_t)BOUND);
    if (at++ < step)
        CHECK(wh_offer_take(&c->states[wh_id_slot(id)], wh_id_gen(id), wh_taker(c->me)), "take");
    if (at++ < step)
        wh_store_relaxed(&c->slots[wh_id_slot(id)].deadline, world_now(&w) + BOUND);
    if (at++ < step)
        c->comp_head++;
    if (at++ < step)
        world_advance_to(&w, world_now(&w) + BOUND + MS); /* and it hangs before it dies */
    end();
}

/* It is over as soon as the state says so. */
static void play_acknowledge(void)
{
    uint32_t at = 0;
    const wh_completion *event = held_by_a((plan){.delay = MS});
    wh_client *c = &A->client;
    if (at++ < step) {
        CHECK(
            wh_offer_done(&c->states[wh_id_slot(event->id)], wh_id_gen(event->id), wh_taker(c->me)),
            "done");
        account_event(&book, event);
    }
    if (at++ < step)
        wh_client_pass_over(c);
    if (at++ < step)
        world_settle(&w);
    end();
}

/* Armed again, it is due in 5 ms, though nobody tells the clock; before, it is due as it was. */
static void play_nack(void)
{
    uint32_t at = 0;
    const wh_completion *event = held_by_a((plan){.delay = MS});
    wh_client *c = &A->client;
    uint64_t id = event->id, due = 0, rest = 0, cookie = event->cookie;
    uint32_t slot = wh_id_slot(id);
    wh_au64 *words = (wh_au64 *)&c->slots[slot];
    int64_t deadline = world_now(&w) + 5 * MS;
    if (at++ < step) {
        due = wh_load_acquire(&words[0]);
        rest = wh_load_acquire(&words[1]);
        CHECK(wh_cas_both(&c->slots[slot], &due, &rest, (uint64_t)deadline, rest), "deadline");
    }
    if (at++ < step) {
        uint64_t state = wh_state_of(wh_id_gen(id), wh_taker(c->me), WH_TAKEN);
        wh_store_relaxed(&book.entries[cookie].wanted, deadline);
        CHECK(wh_cas_acq_rel(&c->states[slot], &state, wh_state(wh_id_gen(id), WH_ARMED)), "armed");
    }
    if (at++ < step)
        wh_client_pass_over(c);
    if (at++ < step)
        wh_client_push(c, wh_id_with(id, WH_OP_RESCHEDULE));
    if (at++ < step)
        wh_client_publish(c, deadline);
    if (at++ < step)
        world_settle(&w);
    end();
}

/* A's own, detached and for ever: from when it is armed on it stays behind A's death, and is B's.
 * The clock has met it or not, it is due or not. */
static void play_keep(void)
{
    uint32_t at = 0;
    begin_with(3);
    CHECK(wh_clock_keep(&w.clock, &w.peers[2], 1000 * MS), "keep");
    CHECK(wh_clock_join(&w.clock, &w.peers[1], 1), "join");
    wh_client *c = &A->client;
    uint32_t slot = hand_slot(A);
    uint64_t id = 0, cookie = SHARE + B->next % SHARE; /* in B's account, who receives it */
    wh_request r = {.deadline = world_now(&w) + 3 * MS,
                    .cookie = cookie,
                    .payload = &cookie,
                    .payload_size = sizeof cookie,
                    .flags = WH_LASTING,
                    .target = wh_target_group(0, 0)};
    if (at++ < step)
        wh_store_relaxed(&c->slots[slot].flags, (uint16_t)r.flags);
    if (at++ < step) {
        id = wh_client_arm(c, slot, &r);
        entry *e = &book.entries[heard = B->next++];
        e->next_tick = r.deadline;
        wh_store_relaxed(&e->wanted, r.deadline);
        wh_store_relaxed(&e->id, id);
    }
    if (at++ < step)
        wh_client_push(c, id);
    if (at++ < step)
        wh_client_publish(c, r.deadline);
    if (at++ < step)
        world_settle(&w);
    if (at++ < step)
        world_advance_to(&w, world_now(&w) + 4 * MS);
    end();
}

/* -- all --------------------------------------------------------------------------------------- */

typedef struct protocol {
    const char *name;
    void (*play)(void);
    uint32_t steps;
} protocol;

int main(int argc, char **argv)
{
    static const protocol protocols[] = {
        {"schedule", play_schedule, 10},
        {"cancel of a linked timer", play_cancel_linked, 4},
        {"cancel of an unseen timer", play_cancel_unseen, 4},
        {"cancel of a periodic timer", play_cancel_periodic, 4},
        {"move", play_move, 5},
        {"receive", play_receive, 3},
        {"hold", play_hold, 5},
        {"acknowledge", play_acknowledge, 3},
        {"nack", play_nack, 6},
        {"schedule of a detached timer", play_keep, 6},
    };
    int failed = 0;
    options_read(argc, argv);
    opt.jitter = 0; /* one thread */
    for (const protocol *p = protocols; p < protocols + sizeof protocols / sizeof *protocols; p++)
        for (step = 0; step <= p->steps; step++) {
            char text[64];
            snprintf(text, sizeof text, "%s, stopped after step %u", p->name, step);
            failed += !case_run(&(single_case){text, p->play});
        }
    printf(failed ? "FAIL: %d cases\n" : "ok\n", failed);
    return failed != 0;
}
