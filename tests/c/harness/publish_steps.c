/* Publish steps: half-written states, set by hand. A worker stops after each single step of what it
 * does; the clock reaps it, the others go on, the account is exact and no slot is lost.
 *
 * A is the worker that stops, B the one that goes on; each owns timers that the other touches. */
#include "single.h"

static uint32_t step; /* after how many steps A stops */

static void begin(void)
{
    single_make(2,
                (wh_config){.tick_ns = MS, .wheel_bits = 6, .capacity = 256, .payload_bytes = 16});
}

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
