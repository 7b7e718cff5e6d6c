/* Single: one world with everything in one thread, under virtual time, so that a case is exact. */
#ifndef HARNESS_SINGLE_H
#define HARNESS_SINGLE_H

#include "cases.h"
#include "crew.h"

#include "wheeld/loop/recover.h"

#define FAR_NS (100000000 * MS)
#define SINGLE_HANDS 8
#define SHARE 8192 /* entries of the account that each hand has */

static world w;
static account book;
static hand hands[SINGLE_HANDS];
#define A (&hands[0])
#define B (&hands[1])
#define C (&hands[2])

/* -- the world --------------------------------------------------------------------------------- */

/* Before its hands come. */
static inline void single_world(uint32_t count, wh_config config)
{
    config.max_workers = count;
    config.virtual_clock = 1;
    world_make(&w, &config);
}

/* An account is made before, if they are to have one. */
static inline void single_attach(void)
{
    for (uint32_t i = 0; i < w.config.max_workers; i++) {
        hand_attach(&hands[i], &w, &book, i, i + 1);
        hands[i].next = SHARE * i;
        hands[i].last = SHARE * (i + 1);
    }
}

static inline void single_make(uint32_t count, wh_config config)
{
    single_world(count, config);
    account_make(&book, SHARE * count);
    single_attach();
}

static inline void single_free(void)
{
    for (uint32_t i = 0; i < w.config.max_workers; i++)
        hand_free(&hands[i]);
    account_free(&book);
    world_free(&w);
}

/* Passes, each of them with nothing left to do in the end. */
static inline void passes(int count)
{
    while (count--)
        world_settle(&w);
}

/* Let the clock look, and the hands take what came, until nothing moves any more. */
static inline void settle_all(void)
{
    for (int turn = 0; turn < 64; turn++) {
        uint64_t got = 0;
        passes(1);
        for (uint32_t i = 0; i < w.config.max_workers; i++)
            if (w.peers[i].life == WH_PEER_PRESENT)
                got += hand_receive(&hands[i]);
        if (got == 0 && turn > 8)
            return;
    }
    FAIL("64 passes and still events");
}

/* The clock dies between two passes, it is `now`, and another one recovers. Passes are the
 * caller's. */
static inline void new_clock_at(int64_t now)
{
    for (uint32_t i = 0; i < w.config.max_workers; i++)
        free(w.peers[i].returns);
    wh_clock_free(&w.clock);
    wh_clock_bind(&w.clock, w.wheel, w.slots, w.peers);
    for (int kind = 0; kind < WH_CLOCK_KINDS; kind++)
        w.clock.now[kind] = now;
    for (uint32_t i = 0; i < w.config.max_workers; i++)
        wh_clock_attach(&w.clock, i, wh_owner_incarnation(hands[i].client.me), w.memories[i],
                        w.bells[i][1]);
    CHECK(wh_clock_recover(&w.clock), "out of memory");
    world_ask(&w, request_check, NULL);
}
static inline void new_clock(void) { new_clock_at(w.clock.now[WH_CLOCK_BASE]); }

/* A's ring of events is full of what is long over, but for `room` places. */
static inline void fill_events(uint64_t room)
{
    wh_peer *peer = &w.peers[0];
    for (uint64_t i = 0; i < w.clock.comp_size; i++)
        peer->comps[i].id = wh_id_with(wh_id(0x7fffffff, 0), WH_EV_TICK);
    peer->comp_tail += w.clock.comp_size - room;
    wh_store_seq(&peer->port->comp_tail, peer->comp_tail);
}

/* Its ring of returns is full of `slot`, which is not its own. */
static inline void fill_returns(uint32_t slot)
{
    wh_peer *peer = &w.peers[0];
    for (uint64_t i = 0; i < w.clock.ret_size; i++)
        wh_store_relaxed(&peer->rets[i], slot);
    wh_store_seq(&peer->port->ret_tail, peer->ret_tail += w.clock.ret_size);
}

static inline bool rung(int bell)
{
    struct pollfd fd = {.fd = bell, .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

/* -- its hands --------------------------------------------------------------------------------- */

static inline uint64_t schedule(hand *h, plan p)
{
    uint64_t cookie;
    CHECK(hand_schedule(h, p, &cookie), "no slot");
    return cookie;
}
static inline uint64_t id_of(uint64_t cookie) { return wh_load_relaxed(&book.entries[cookie].id); }

/* A timer without an entry in the account. */
static inline uint64_t arm(hand *h, wh_request r)
{
    uint32_t slot = hand_slot(h);
    CHECK(slot != WH_NIL, "no slot");
    uint64_t id = wh_client_arm(&h->client, slot, &r);
    wh_client_push(&h->client, id);
    wh_client_publish(&h->client, r.deadline);
    return id;
}

/* The worker is gone, from one instruction to the next; passes until the row is free. */
static inline void kill_hand(hand *h)
{
    uint32_t before = wh_load_acquire(&w.reaped[h->row]);
    wh_clock_detach(&w.peers[h->row], WH_LEAVE_DROP);
    for (int turn = 0; turn < 64 && wh_load_acquire(&w.reaped[h->row]) == before; turn++)
        passes(1);
    CHECK(wh_load_acquire(&w.reaped[h->row]) == before + 1, "row %u is never reaped", h->row);
    for (uint64_t i = SHARE * h->row; i < h->next; i++) {
        entry *e = &book.entries[i];
        if (wh_load_relaxed(&e->id) && !entry_over(e))
            entry_add(&e->dropped);
    }
}

/* Another worker in that row. */
static inline void next_tenant(hand *h)
{
    hand_free(h);
    hand_attach(h, &w, &book, h->row, 9);
}

/* A dies; B, the other member of its group, has its slabs. */
static inline void reassign_to_b(void)
{
    w.peers[0].groups = w.peers[1].groups = 1;
    wh_clock_detach(&w.peers[0], WH_LEAVE_REROUTE);
    passes(4);
}

/* How many slots a newcomer can get hold of: all that nobody holds. They stay armed, far away. */
static inline uint32_t count_claimable(hand *newcomer)
{
    uint32_t count = 0;
    wh_client *c = &newcomer->client;
    while (wh_slabs_take(&c->slabs) != WH_NIL ||
           (wh_client_claim(c) && wh_slabs_take(&c->slabs) != WH_NIL))
        count++;
    return count;
}

/* All that this hand was lent or owns is back. */
static inline void check_idle(const hand *h)
{
    if (!hand_idle(h))
        hand_print_missing(h);
    CHECK(hand_idle(h), "slots of row %u are lost", h->row);
}

/* No timer is linked any more. */
static inline void check_empty(void)
{
    uint64_t linked;
    request_check(&w, &linked);
    CHECK(linked == 0, "%llu timers linked in the end", (ull)linked);
}

#endif
