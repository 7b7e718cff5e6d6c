/* Wraps: ring positions, generations, versions and ticks that start just below where they wrap; the
 * same account as anywhere. One thread, virtual time. */
#include "single.h"

#define BELOW 300 /* how far below the wrap a ring starts; a course goes further than that */

typedef struct origin {
    uint64_t position, ring_below;
    uint32_t gen, version, wheel_bits;
    int64_t tick_ns, start_ns;
} origin;

static origin from; /* of the case that runs */

static void make(void)
{
    single_world(2, (wh_config){.tick_ns = from.tick_ns,
                                .wheel_bits = from.wheel_bits,
                                .capacity = 4096,
                                .payload_bytes = 8,
                                .origin_ns = from.start_ns});
    for (uint32_t row = 0; row < 2; row++) {
        wh_port *port = wh_port_of(w.wheel, &w.geometry, row);
        wh_store_relaxed(&port->sub_head, from.position - from.ring_below);
        wh_store_relaxed(&port->comp_tail, from.position - from.ring_below);
        wh_store_relaxed(&port->ret_tail, from.position - from.ring_below);
    }
    for (uint32_t slot = 0; slot < w.config.capacity && from.gen; slot++)
        wh_store_relaxed(&w.clock.states[slot], wh_state(from.gen - slot % 4, WH_CANCELLED));
    account_make(&book, 2 * SHARE);
    single_attach();
}

/* An armed timer that the clock has not seen gets a high version. */
static void age(hand *h, uint64_t cookie)
{
    uint64_t id = id_of(cookie);
    uint64_t state = (uint64_t)wh_id_gen(id) << 32 | (uint64_t)from.version << 8 | WH_ARMED;
    wh_store_release(&h->client.states[wh_id_slot(id)], state);
}

static void one_op(hand *h, hand *other)
{
    uint64_t dice = rng_next(&h->rng), cookie, recent = h->next - 1 - dice % 200;
    int64_t reach = from.tick_ns * 40;
    bool any = recent < h->next && recent >= h->row * SHARE;
    if (dice >> 32 & 1) {
        plan p = {.delay = (int64_t)((dice >> 8) % (uint64_t)reach), .payload_size = 8};
        p.delay = dice >> 36 & 31 ? p.delay : INT64_MAX;
        p.interval = dice >> 33 & 7 ? 0 : reach / 4 + 1;
        p.target = dice >> 41 & 3 ? 0 : hand_target(other);
        if (hand_schedule(h, p, &cookie) && from.version)
            age(h, cookie);
    } else if (any && dice >> 33 & 1) {
        hand_move(h, recent, (int64_t)((dice >> 16) % (uint64_t)reach));
    } else if (any) {
        hand_cancel(h, recent);
    }
}

/* Open timers are cancelled at the end; then all slots are back. */
static void finish(void)
{
    for (int row = 0; row < 2; row++)
        for (uint64_t i = SHARE * (uint64_t)row; i < hands[row].next; i++) {
            if (!entry_over(&book.entries[i]))
                hand_cancel(&hands[row], i);
            if (i % 256 == 0)
                settle_all();
        }
    settle_all();
    account_balance(&book);
    for (int row = 0; row < 2; row++)
        CHECK(hands[row].client.comp_head - from.position + from.ring_below > BELOW &&
                  hands[row].client.ret_head - from.position + from.ring_below > BELOW,
              "the rings of row %d did not come so far", row);
    check_empty();
    for (int row = 0; row < 2; row++) {
        check_idle(&hands[row]);
        CHECK(wh_load_relaxed(&w.peers[row].port->offences) == 0, "row %d: offences", row);
    }
}

static void play(void)
{
    make();
    uint64_t rng = rng_seeded(3);
    for (uint64_t turn = 0; turn < 100 + 50 * opt.scale; turn++) {
        for (int i = 0; i < 30; i++)
            one_op(&hands[i & 1], &hands[~i & 1]);
        int64_t now = world_now(&w);
        int64_t target = wh_time_add(now, (int64_t)rng_below(&rng, (uint64_t)from.tick_ns * 8));
        request_advance(&w, &target);
        if (turn % 8 == 0)
            request_check(&w, NULL);
        if (turn % 16 < 12) /* else the rings fill, and backlogs with them */
            for (int row = 0; row < 2; row++)
                hand_receive(&hands[row]);
    }
    finish();
    single_free();
}

static int try(const char *what, uint64_t where, origin o)
{
    char text[64];
    from = o;
    snprintf(text, sizeof text, "%s %llx", what, (ull)where);
    return !case_run(&(single_case){text, play});
}

int main(int argc, char **argv)
{
    static const uint64_t positions[] = {1ull << 31, 1ull << 32, 1ull << 47,
                                         1ull << 48, 1ull << 63, 0};
    static const int64_t ticks[] = {1ll << 31, 1ll << 32, 1ll << 48, 1ll << 62, INT64_MAX - 100000};
    static const uint32_t bits[] = {1, 2, 5, 6, 7, 9, 12};
    origin plain = {.position = 1 << 20, .wheel_bits = 6, .tick_ns = 1000, .start_ns = 5000};
    int failed = 0;
    options_read(argc, argv);
    opt.jitter = 0; /* one thread */
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++)
        for (uint64_t below = 0; below <= BELOW; below += BELOW) {
            origin o = plain;
            o.position = positions[i];
            o.ring_below = below;
            failed += try("rings at", positions[i] - below, o);
        }
    for (uint32_t gen = UINT32_MAX - 4; gen; gen++) {
        origin o = plain;
        o.gen = gen;
        failed += try("generation", gen, o);
    }
    for (uint32_t version = 0x7ffff0; version < 1 << 23; version += 5) {
        origin o = plain;
        o.version = version;
        failed += try("version", version, o);
    }
    for (size_t i = 0; i < sizeof ticks / sizeof *ticks; i++)
        for (size_t b = 0; b < sizeof bits / sizeof *bits; b++) {
            origin o = plain;
            o.tick_ns = 1 + 2 * (b % 2);
            o.start_ns = ticks[i] - 800;
            o.wheel_bits = bits[b];
            failed += try("time", (uint64_t)o.start_ns, o);
        }
    printf(failed ? "FAIL: %d cases\n" : "ok\n", failed);
    return failed != 0;
}
