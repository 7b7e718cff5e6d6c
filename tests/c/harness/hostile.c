/* Hostile: one worker scribbles over all that it may write: its segment, its slots, the owner words
 * of its slabs. The clock stays within bounds and goes on, and the account of the honest workers is
 * exact. (Other workers' slots are in the same segment; a worker that writes there breaks its
 * neighbours, not the daemon. That is not tried here.) */
#include "crew.h"

#define HONEST 2
#define SLABS 8 /* that the hostile one holds */

typedef struct attack {
    world world;
    account account;
    hand hands[HONEST + 1];
    uint32_t slabs[SLABS];
    wh_au32 over;
    uint64_t ops;
} attack;

/* -- the hostile one --------------------------------------------------------------------------- */

static uint32_t own_slot(attack *a, uint64_t dice)
{
    return a->slabs[dice % SLABS] << WH_SLAB_BITS | (uint32_t)(dice >> 8) % WH_SLAB_SLOTS;
}

/* Words that mean something to somebody are worse than random ones. */
static uint64_t garbage(attack *a, hand *h)
{
    uint64_t dice = rng_next(&h->rng), r = rng_next(&h->rng);
    static const uint64_t odd[] = {
        0,          1,          2,          UINT64_MAX, 1ull << 63,      INT64_MAX,
        1ull << 32, 0xffffffff, 1ull << 30, 1ull << 48, (1ull << 63) + 5};
    switch (dice % 6) {
    case 0:
        return odd[r % (sizeof odd / sizeof *odd)];
    case 1: /* an id: any slot, any kind, a likely generation */
        return wh_id((uint32_t)(r >> 40) % 8, (uint32_t)r % a->world.config.capacity) |
               (r >> 32 & 3) << WH_ID_KIND_AT;
    case 2: /* an id of its own */
        return wh_id((uint32_t)(r >> 40) % 8, own_slot(a, r)) | (r >> 32 & 3) << WH_ID_KIND_AT;
    case 3: /* a state */
        return wh_state((uint32_t)(r >> 40) % 8, (uint32_t)r % 5);
    case 4: /* a time around now */
        return (uint64_t)(world_now(&a->world) + (int64_t)(r % (4 * MS)) - 2 * MS);
    default:
        return r;
    }
}

/* Never 0 nor an honest worker's: that would hand over slots that it goes on to scribble over. */
static void scribble_owner(attack *a, hand *h)
{
    uint64_t word = garbage(a, h);
    for (int i = 0; i < HONEST; i++)
        if (word == 0 || word == a->hands[i].client.me)
            return;
    wh_store_release(&a->world.clock.owners[a->slabs[word % SLABS]], word);
}

static void scribble_slot(attack *a, hand *h)
{
    uint64_t dice = rng_next(&h->rng), word = garbage(a, h);
    uint32_t slot = own_slot(a, dice >> 8);
    wh_slot *s = &a->world.clock.slots[slot];
    switch (dice % 8) {
    case 0:
        wh_store_relaxed(&s->deadline, (int64_t)word);
        break;
    case 1:
        wh_store_relaxed(&s->interval, (int64_t)word);
        break;
    case 2:
        wh_store_relaxed(&s->cookie, word);
        break;
    case 3:
        wh_store_relaxed(&s->target, (uint32_t)word);
        break;
    case 4:
        wh_store_relaxed(&s->payload_size, (uint16_t)word);
        break;
    case 5:
        wh_store_relaxed(&s->flags, (uint16_t)word);
        break;
    default:
        wh_store_release(&a->world.clock.states[slot], word);
    }
}

static void scribble_segment(attack *a, hand *h)
{
    wh_worker_seg *seg = h->client.seg;
    uint64_t dice = rng_next(&h->rng), word = garbage(a, h);
    wh_au64 *words[] = {&seg->comp_head, &seg->ret_head, &seg->wait_seq, &seg->scheduled,
                        &seg->sub_tail};
    if (dice % 16 == 0)
        wh_store_seq(words[(dice >> 8) % 5], word);
    else if (dice % 16 == 1) /* a plausible position */
        wh_store_seq(words[(dice >> 8) % 2],
                     wh_load_relaxed(&h->client.port->comp_tail) - (dice >> 32) % 64);
    else
        wh_store_relaxed(&h->client.subs[(dice >> 8) & (h->client.sub_size - 1)], word);
}

/* Show what stands in the ring, so that the clock looks at it. */
static void submit_some(hand *h)
{
    uint64_t head = wh_load_acquire(&h->client.port->sub_head);
    wh_store_seq(&h->client.seg->sub_tail, head + rng_below(&h->rng, h->client.sub_size + 2));
    wh_bell_ring(h->client.clock_bell.number);
}

/* Arm one of its slots as an honest client would, whatever the slot is in. */
static void arm_some(attack *a, hand *h)
{
    uint64_t dice = rng_next(&h->rng);
    wh_request r = {.deadline = (int64_t)garbage(a, h),
                    .target = (uint32_t)garbage(a, h),
                    .interval = dice >> 40 & 1 ? (int64_t)garbage(a, h) : 0,
                    .cookie = garbage(a, h)};
    uint64_t id = wh_client_arm(&h->client, own_slot(a, dice), &r);
    wh_store_relaxed(&h->client.subs[(dice >> 20) & (h->client.sub_size - 1)], id);
}

static void *hostile_main(void *argument)
{
    attack *a = argument;
    hand *h = &a->hands[HONEST];
    jitter_seed(66);
    while (!wh_load_acquire(&a->over)) {
        uint64_t dice = rng_below(&h->rng, 64);
        if (dice == 0)
            scribble_owner(a, h);
        else if (dice == 1)
            submit_some(h);
        else if (dice < 20)
            arm_some(a, h);
        else if (dice < 40)
            scribble_slot(a, h);
        else
            scribble_segment(a, h);
        if (dice == 2) /* back to what lets the clock believe it again */
            for (int i = 0; i < SLABS; i++)
                wh_store_release(&a->world.clock.owners[a->slabs[i]], h->client.me);
    }
    return NULL;
}

/* -- the honest ones --------------------------------------------------------------------------- */

static void *honest_main(void *argument)
{
    hand *h = argument;
    attack *a = h->own;
    uint64_t first = h->next, cookie;
    jitter_seed(h->row + 1);
    for (uint64_t op = 0; op < a->ops; op++) {
        uint64_t dice = rng_next(&h->rng), recent = h->next - 1 - (dice >> 8) % 64;
        bool any = h->next > first && recent >= first && recent < h->next;
        plan p = {.delay = (int64_t)(dice >> 16) % MS, .payload_size = 8};
        p.target = dice >> 50 & 3 ? 0 : hand_target(&a->hands[!h->row]);
        p.interval = dice >> 54 & 31 ? 0 : MS;
        if (dice % 8 < 4)
            hand_schedule(h, p, &cookie);
        else if (any && dice % 8 < 6)
            hand_cancel(h, recent);
        else if (any && dice % 8 < 7)
            hand_move(h, recent, p.delay);
        else
            hand_receive(h);
    }
    for (uint64_t i = first; i < h->next; i++)
        if (!entry_over(&h->account->entries[i]) && h->account->entries[i].interval)
            hand_cancel(h, i);
    return NULL;
}

/* Their events may have gone to each other: receive for both until all is in. */
static void finish_honest(attack *a)
{
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + GIVE_UP_NS;
    for (bool over = false; !over;) {
        over = true;
        for (int i = 0; i < HONEST; i++) {
            hand *h = &a->hands[i];
            wh_client_ring(&h->client);
            hand_receive(h);
            over &= hand_idle(h) && account_open(&a->account, 0, a->account.size) == 0;
        }
        if (wh_clock_read(CLOCK_MONOTONIC) > give_up) {
            hand_print_missing(&a->hands[0]);
            hand_print_missing(&a->hands[1]);
            FAIL("%llu honest timers never ended",
                 (ull)account_open(&a->account, 0, a->account.size));
        }
        pause_ns(100000);
    }
}

static void claim_slabs(attack *a, hand *h)
{
    for (int i = 0; i < SLABS; i++) {
        CHECK(wh_slabs_claim(&h->client.slabs), "claim");
        a->slabs[i] = h->client.slabs.stack[h->client.slabs.stack_size - 1];
    }
}

static void reap_hostile(attack *a)
{
    uint32_t row = HONEST;
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + GIVE_UP_NS;
    world_ask(&a->world, request_detach, &row);
    while (!wh_load_acquire(&a->world.reaped[row])) {
        for (int i = 0; i < HONEST; i++)
            hand_receive(&a->hands[i]);
        wh_bell_ring(a->world.bell[1]);
        pause_ns(100000);
        CHECK(wh_clock_read(CLOCK_MONOTONIC) < give_up, "the hostile worker is never reaped");
    }
}

static void play(uint64_t ops, uint32_t capacity)
{
    static attack a;
    memset(&a, 0, sizeof a);
    wh_config config = {.tick_ns = 10000,
                        .wheel_bits = 6,
                        .capacity = capacity,
                        .payload_bytes = 8,
                        .max_workers = HONEST + 1,
                        .origin_ns = wh_clock_read(CLOCK_MONOTONIC)};
    world_make(&a.world, &config);
    account_make(&a.account, ops * HONEST);
    a.account.tolerant = true;
    a.ops = ops;
    for (uint32_t i = 0; i <= HONEST; i++) {
        hand_attach(&a.hands[i], &a.world, &a.account, i, i + 1);
        a.hands[i].next = i * ops;
        a.hands[i].last = (i + 1) * ops;
        a.hands[i].own = &a;
    }
    claim_slabs(&a, &a.hands[HONEST]);
    world_start(&a.world);
    CHECK(pthread_create(&a.hands[HONEST].thread, NULL, hostile_main, &a) == 0, "thread");
    for (uint32_t i = 0; i < HONEST; i++)
        CHECK(pthread_create(&a.hands[i].thread, NULL, honest_main, &a.hands[i]) == 0, "thread");
    for (uint32_t i = 0; i < HONEST; i++)
        pthread_join(a.hands[i].thread, NULL);
    world_ask(&a.world, request_check, NULL); /* while it goes on */
    wh_store_release(&a.over, 1);
    pthread_join(a.hands[HONEST].thread, NULL);
    reap_hostile(&a);
    finish_honest(&a);
    world_stop(&a.world);
    request_check(&a.world, NULL);
    printf("  %llu honest timers, %llu offences, %llu passes\n", (ull)account_balance(&a.account),
           (ull)wh_load_relaxed(&a.world.peers[HONEST].port->offences),
           (ull)wh_load_relaxed(&a.world.clock.seg->passes));
    for (uint32_t i = 0; i <= HONEST; i++)
        hand_free(&a.hands[i]);
    account_free(&a.account);
    world_free(&a.world);
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    play(20000 * opt.scale, 4096);
    play(20000 * opt.scale, 32768);
    printf("ok\n");
    return 0;
}
