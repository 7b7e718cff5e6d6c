/* Heirs: what a slab brings along that changes hands while something of it is under way. */
#include "single.h"

static world w;
static account book;
static hand hands[2];
#define A (&hands[0])
#define B (&hands[1])

static bool has(const hand *h, uint32_t slot)
{
    return h->client.slabs.free[slot >> WH_SLAB_BITS] >> (slot & (WH_SLAB_SLOTS - 1)) & 1;
}

/* A dies; B, the other member of its group, has its slab. */
static void inherit(void)
{
    w.peers[0].groups = w.peers[1].groups = 1;
    wh_clock_detach(&w.peers[0], WH_LEAVE_REROUTE);
    for (int pass = 0; pass < 4; pass++)
        world_settle(&w);
}

/* B reads what A lent it when the slot is its own already: it gets it once, as all of the slab. */
static void play_lent_to_the_heir(void)
{
    wh_config config = {.tick_ns = MS, .wheel_bits = 6, .capacity = 256, .payload_bytes = 16};
    uint64_t cookie;
    single_make(&w, &book, hands, 2, &config);
    CHECK(hand_schedule(A, (plan){.delay = MS, .target = hand_target(B)}, &cookie), "no slot");
    uint32_t slot = wh_id_slot(wh_load_relaxed(&book.entries[cookie].id));
    world_advance_to(&w, 2 * MS);
    inherit();
    wh_client_receive(&B->client, B->events, EVENTS_ROOM);
    CHECK(((wh_completion *)B->events)->cookie == cookie, "no event");
    bool at_once = has(B, slot);
    for (int pass = 0; pass < 4; pass++)
        world_settle(&w);
    uint64_t returned = wh_client_returns_ready(&B->client), times = 0;
    for (uint64_t i = 0; i < returned; i++)
        times += wh_load_relaxed(&B->client.rets[B->client.ret_head + i]) == slot;
    CHECK(times + at_once == 1, "it gets the slot %llu times", (ull)times + at_once);
}

int main(int argc, char **argv)
{
    static const single_case cases[] = {{"lent to the heir", play_lent_to_the_heir}};
    options_read(argc, argv);
    opt.jitter = 0; /* one thread */
    return cases_run(cases, sizeof cases / sizeof *cases);
}
