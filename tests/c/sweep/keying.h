/* Keying: workers that claim, replace, move and cancel timers by key, all in two crowded sets of
 * the directory.
 *
 * The ledger learns of a timer that was replaced from its state (keys_note): of the calls, only
 * those that began may have ended it. A timer that is armed and that its key's word does not name
 * is barred: if it fires before it is named, that is a failure. */
#ifndef SWEEP_KEYING_H
#define SWEEP_KEYING_H

#include "keeping.h"

#define KEYS 3
#define MINE 2 /* the key that it is about */
#define FILLERS (WH_WORD_CHOICES - KEYS) /* with them, every place is taken */
#define MORE_KEYS 3 /* others of the same sets, for which there is no place */
#define ALL_KEYS (KEYS + FILLERS + MORE_KEYS)

enum half_kind { HALF_NONE, HALF_ARMED, HALF_NAMED, HALF_CLOSED };

typedef struct keybook {
    uint64_t first, second; /* the top bit of hash and check: which set is which */
    uint32_t enders[ALL_KEYS], ended[ALL_KEYS]; /* calls that may end a timer; timers so ended */
    bool fluid[ALL_KEYS]; /* timers were moved by it */
    bool never_free[ALL_KEYS]; /* whoever looks finds a timer */
    bool kept; /* MINE's timers would keep it until the acknowledgement; they are far */
    bool freed; /* one of MINE's was cancelled, and none seen armed since */
    bool held; /* all timers keep their keys until the acknowledgement */
    struct half { /* what a worker has done of a call in which it stands */
        worker *w;
        enum half_kind kind;
        uint64_t id, before, cookie, tag;
        uint32_t place;
    } half;
    char bytes[ALL_KEYS][64];
} keybook;

#define BOOK ((keybook *)S->own)

static wh_key key_of(uint32_t number)
{
    return (wh_key){.word = wh_words_key(BOOK->first | (uint64_t)number << 3,
                                         BOOK->second | (uint64_t)number << 3, WH_WORD_TIMER),
                    .bytes = BOOK->bytes[number],
                    .size = number % 2 ? 60 : 8}; /* some in a long room */
}

/* -- what the directory says ------------------------------------------------------------------- */

/* The id in the key's word, found without the functions under test; *live: how many it has. */
static uint64_t key_word(uint32_t number, int *live)
{
    wh_key key = key_of(number);
    uint64_t id = 0;
    *live = 0;
    for (uint32_t i = 0; i < WH_WORD_CHOICES; i++) {
        uint32_t place = wh_words_place(&B->keys, &key.word, i);
        if (wh_load_relaxed(wh_words_tag(&B->keys, place)) != key.word.live ||
            wh_load_relaxed(wh_words_check(&B->keys, place)) != key.word.check)
            continue;
        id = wh_load_relaxed(wh_words_value(&B->keys, place));
        ++*live;
    }
    return id;
}

/* Whether a clock runs or not. */
static bool armed_now(uint64_t id) { return wh_slot_stands(&B->client.states[wh_id_slot(id)], id); }

static uint64_t state_now(uint64_t id)
{
    return wh_load_relaxed(&B->client.states[wh_id_slot(id)]);
}

static entry *entry_of(uint64_t id)
{
    for (uint32_t i = 0; i < S->book.count; i++)
        if (S->book.entries[i].id == id)
            return &S->book.entries[i];
    uint64_t cookie = wh_load_relaxed(&B->client.slots[wh_id_slot(id)].cookie);
    CHECK(cookie < S->book.count && S->book.entries[cookie].flight == SCHEDULING,
          "%llx is the id of no timer", (ull)id);
    return &S->book.entries[cookie];
}

static void entry_ended(entry *e)
{
    uint32_t key = e->key - 1u;
    e->raced = true; /* a tick may stand in a ring */
    e->cancels = 1;
    CHECK(++BOOK->ended[key] <= BOOK->enders[key], "a timer of key %u ended by itself", key);
}

/* Which timers with keys were ended, and which are barred. A clock that stands still ends none; it
 * may have looked at a key before, and fires what that named then. A timer that was given
 * back needs no key. */
static void keys_note(void)
{
    for (uint32_t i = 0; i < S->book.count; i++) {
        entry *e = &S->book.entries[i];
        bool stood = e->stood, swept = e->owner < ROWS && S->policy[e->owner];
        e->stood = false;
        bool lands = e->flight == LANDED || e->flight == GIVING_BACK;
        if (!e->key || !e->id || !lands || !e->used || entry_over(e) ||
            wh_state_gen(state_now(e->id)) != wh_id_gen(e->id))
            continue;
        int live;
        uint32_t phase = wh_state_phase(state_now(e->id));
        e->stood = phase == WH_ARMED;
        if (swept && !(stood && S->clockless)) /* it may end by that */
            continue;
        if (phase == WH_ARMED && !e->interval && !e->takes)
            e->barred = key_word(e->key - 1u, &live) != e->id && (e->barred || !S->clockless);
        if (phase == WH_CANCELLED)
            entry_ended(e);
    }
}

/* Nobody stands in a call: a timer is armed if and only if its key's word names it. */
static void keys_check(void)
{
    keys_note();
    for (uint32_t key = 0; key < ALL_KEYS; key++) {
        int live;
        uint64_t id = key_word(key, &live);
        CHECK(live <= 1, "key %u has %d words", key, live);
        if (live == 0 || id == 0 || id == WH_KEY_CLOSED || !wh_keys_pending(&B->keys, id))
            continue;
        CHECK(entry_of(id)->key == key + 1, "key %u names a timer of key %d", key,
              entry_of(id)->key - 1);
        wh_key wanted = key_of(key);
        uint32_t size;
        const char *bytes = wh_key_in(&B->keys, wh_id_slot(id), &size);
        CHECK(size == wanted.size && memcmp(bytes, wanted.bytes, size) == 0,
              "the room of key %u's timer has another key", key);
    }
    for (uint32_t slot = 0; slot < S->config.capacity; slot++) {
        uint64_t state = wh_load_relaxed(&B->client.states[slot]);
        uint64_t id = wh_id(wh_state_gen(state), slot);
        uint32_t flags = wh_load_relaxed(&B->client.slots[slot].flags);
        if (wh_state_phase(state) != WH_ARMED || !(flags & WH_KEYED) ||
            (entry_of(id)->takes && !(flags & WH_HELD))) /* it was given back */
            continue;
        int live;
        uint32_t key = entry_of(id)->key - 1u;
        CHECK(key_word(key, &live) == id, "%llx is armed, and key %u names %llx", (ull)id, key,
              (ull)key_word(key, &live));
    }
}

/* -- calls ------------------------------------------------------------------------------------- */

/* In a crew with a keeper all timers with keys are detached, and for the group. */
static plan key_owned(plan p)
{
    if (crew_keeps) {
        p.to = TO_GROUP;
        p.flags = WH_LASTING;
    }
    return p;
}

/* Timers of the key are moved by it: which of them, and when, only the wheel knows. */
static void keys_flow(uint32_t number)
{
    BOOK->fluid[number] = true;
    for (uint32_t i = 0; i < S->book.count; i++)
        if (S->book.entries[i].key == number + 1)
            S->book.entries[i].moved = S->book.entries[i].fluid = true;
}

static enum wh_call key_schedule(worker *w, uint32_t number, enum wh_conflict how, plan p)
{
    char payload[64];
    p = key_owned(p);
    wh_request r = worker_request(w, p, payload);
    entry *e = &S->book.entries[r.cookie];
    wh_key key = key_of(number);
    uint64_t id = 0;
    e->key = (uint8_t)(number + 1);
    if (BOOK->held || (BOOK->kept && number == MINE))
        r.flags |= WH_HELD;
    if (how == WH_KEY_REPLACE) /* one that keeps its key ends first, and others claim in between */
        BOOK->enders[number] += r.flags & WH_HELD ? MOST_ENTRIES : 1;
    if (how >= WH_KEY_LATER)
        keys_flow(number);
    step_begin();
    enum wh_call call =
        wh_call_schedule_key(&w->client, &w->keys, &key, &r, p.delay, how, w->waits, &id);
    step_end();
    CHECK(call == WH_CALL_OK || call == WH_CALL_TAKEN || call == WH_CALL_KEYS_FULL ||
              call == WH_CALL_WHEEL_FULL || call == WH_CALL_RING_FULL ||
              call == WH_CALL_DETACHED_FULL || (call == WH_CALL_KEY_HELD && BOOK->held),
          "a claim ended with %d", (int)call);
    CHECK((call != WH_CALL_TAKEN && call != WH_CALL_KEY_HELD) || entry_of(id)->key == number + 1,
          "a claim of %u found key %d", number, entry_of(id)->key - 1);
    CHECK(call != WH_CALL_TAKEN || how != WH_KEY_REPLACE, "a replacing claim was refused");
    CHECK(call == WH_CALL_OK || !entry_over(e), "a refused claim has ended");
    worker_armed(e, p.to, call == WH_CALL_OK ? id : 0);
    e->moved = e->fluid = BOOK->fluid[number];
    keys_note();
    BOOK->freed &= number != MINE || !id || !armed_now(id);
    return call;
}

static void key_cancel(worker *w, uint32_t number)
{
    wh_key key = key_of(number);
    uint64_t id = 0;
    BOOK->enders[number]++;
    step_begin();
    enum wh_call call = wh_call_cancel_key(&w->client, &w->keys, &key, w->waits, &id);
    step_end();
    CHECK(call != WH_CALL_OVER || !BOOK->never_free[number], "key %u is said to be free", number);
    keys_note();
    if (call != WH_CALL_OK)
        return;
    BOOK->freed |= number == MINE;
    entry *e = entry_of(id);
    CHECK(e->key == number + 1, "a cancel of key %u ended one of key %d", number, e->key - 1);
    CHECK(!e->events, "%llx fired and was cancelled by its key", (ull)id);
    if (!e->cancels) { /* its claimant stands in its call */
        e->id = id;
        entry_ended(e);
    }
}

static void key_move(worker *w, uint32_t number, int64_t delay)
{
    wh_key key = key_of(number);
    uint64_t id = 0;
    keys_flow(number);
    step_begin();
    enum wh_call call = wh_call_reschedule_key(&w->client, &w->keys, &key, delay, 0, w->waits, &id);
    step_end();
    CHECK(call != WH_CALL_OVER || !BOOK->never_free[number], "key %u is said to be free", number);
    CHECK(call != WH_CALL_OK || entry_of(id)->key == number + 1, "key %u moved one of key %d",
          number, entry_of(id)->key - 1);
}

/* Pause it, or let it go on. */
static void key_hold(worker *w, uint32_t number, bool pause)
{
    wh_key key = key_of(number);
    keys_flow(number);
    step_begin();
    enum wh_call call = pause ? wh_call_pause_key(&w->client, &w->keys, &key)
                              : wh_call_resume_key(&w->client, &w->keys, &key, w->waits);
    step_end();
    CHECK(call != WH_CALL_OVER || !BOOK->never_free[number], "key %u is said to be free", number);
}

static void key_find(worker *w, uint32_t number)
{
    wh_key key = key_of(number);
    step_begin();
    uint64_t id = wh_key_pending(&w->keys, &key);
    step_end();
    CHECK(id || !BOOK->never_free[number], "key %u is said to be free", number);
    CHECK(!id || entry_of(id)->key == number + 1, "key %u is said to be that of key %d", number,
          entry_of(id)->key - 1);
}

/* -- calls that stop half way ------------------------------------------------------------------ */

/* `w` stops in a claim: its timer is armed; or the word names it, too. */
static void half_claim(worker *w, uint32_t number, enum half_kind kind)
{
    char payload[64];
    plan p = key_owned((plan){.delay = 5 * MS, .to = w->row});
    wh_request r = worker_request(w, p, payload);
    wh_key key = key_of(number);
    struct half *h = &BOOK->half;
    *h = (struct half){.w = w, .kind = kind, .cookie = r.cookie};
    uint32_t slot;
    r.flags |= WH_KEYED;
    CHECK(wh_client_have_slot(&w->client, 2, false, &slot) == WH_CALL_OK, "no slot");
    h->place = wh_words_hold(&w->keys, &key.word, false);
    CHECK(h->place != WH_NIL, "no place");
    wh_key_write(&w->keys, slot, &key, h->place);
    h->id = wh_client_arm(&w->client, slot, &r);
    entry *e = &S->book.entries[r.cookie];
    e->key = (uint8_t)(number + 1);
    BOOK->enders[number]++;
    w->still = true;
    if (kind == HALF_NAMED)
        CHECK(wh_key_name(&w->client, &w->keys, h->place, h->id, true, &h->before) == WH_CALL_OK,
              "a claim is refused");
}

/* `w` stops while it gives up the place of a key whose timer has ended. */
static void half_retire(worker *w, uint32_t number)
{
    wh_key key = key_of(number);
    struct half *h = &BOOK->half;
    uint32_t place = wh_words_find(&w->keys, &key.word);
    *h = (struct half){.w = w, .kind = HALF_CLOSED, .place = place};
    CHECK(place != WH_NIL, "no place");
    h->tag = wh_load_relaxed(wh_words_tag(&w->keys, place));
    h->id = wh_load_relaxed(wh_words_value(&w->keys, place));
    CHECK(!wh_keys_pending(&w->keys, h->id), "it is armed");
    wh_cas_seq(wh_words_value(&w->keys, place), &h->id, WH_KEY_CLOSED);
    w->still = true;
}

/* As the rest of wh_key_try. */
static void half_claim_ends(struct half *h)
{
    wh_client *c = &h->w->client;
    entry *e = &S->book.entries[h->cookie];
    bool named = h->kind == HALF_NAMED ||
                 wh_key_name(c, &h->w->keys, h->place, h->id, true, &h->before) == WH_CALL_OK;
    if (!named)
        wh_key_replaced(c, h->id);
    else if (h->before)
        wh_key_replaced(c, h->before);
    wh_store_seq(&c->seg->replacing, 0);
    wh_words_let_go(&h->w->keys);
    if (named)
        wh_client_push(c, h->id);
    wh_client_publish_lazily(c);
    e->moved = e->fluid = BOOK->fluid[e->key - 1];
    worker_armed(e, e->to, named ? h->id : 0);
}

/* Whoever stands in a call goes on. */
static void half_ends(void)
{
    struct half *h = &BOOK->half;
    if (h->kind == HALF_CLOSED) {
        wh_cas_seq(wh_words_tag(&h->w->keys, h->place), &h->tag, WH_WORD_OVER);
        wh_words_let_go(&h->w->keys);
    } else if (h->kind != HALF_NONE) {
        half_claim_ends(h);
    }
    if (h->kind != HALF_NONE)
        h->w->still = false;
    h->kind = HALF_NONE;
    keys_note();
}

/* -- a crew that uses keys --------------------------------------------------------------------- */

static plan key_plan(const worker *w)
{
    plan p = {.delay = dice(3) ? (int64_t)dice(8 * MS) : FAR_NS, .to = w->row};
    if (dice(5) == 0)
        p.to = someone()->row;
    if (dice(6) == 0 && !BOOK->held)
        p.interval = (int64_t)(3 + dice(20)) * MS;
    return p;
}

static void keys_act(void)
{
    worker *w = someone();
    uint32_t key = dice(4) ? (uint32_t)dice(KEYS) : (uint32_t)dice(ALL_KEYS);
    uint64_t what = dice(13);
    if (BOOK->kept && key == MINE) {
        if (what < 3)
            key_cancel(w, key);
        else
            key_schedule(w, key, (enum wh_conflict)dice(3), (plan){.delay = FAR_NS, .to = w->row});
        return;
    }
    if (BOOK->never_free[key]) {
        key_schedule(w, key, WH_KEY_REPLACE, (plan){.delay = FAR_NS, .to = w->row});
        return;
    }
    if (what < 6)
        key_schedule(w, key, (enum wh_conflict)dice(5), key_plan(w));
    else if (what < 8)
        key_cancel(w, key);
    else if (what == 8)
        key_move(w, key, (int64_t)dice(9 * MS));
    else if (what == 9)
        key_find(w, key);
    else if (what == 10)
        key_hold(w, key, dice(2));
    else if (what == 11)
        worker_receive(w);
    else if (!S->clockless)
        clock_advance(crew_now() + (int64_t)dice(3 * MS));
    keys_note();
}

static void keys_history(uint64_t steps)
{
    while (steps--)
        keys_act();
}

/* All timers have ended: each place can be had again, and each key be claimed. */
static void keys_account(void)
{
    keys_check();
    wh_key key = key_of(0);
    for (uint32_t i = 0; i < WH_WORD_CHOICES; i++) {
        uint32_t place = wh_words_place(&B->keys, &key.word, i);
        wh_keys_retire(&B->keys, place);
        wh_words_empty(&B->keys, place);
        CHECK(wh_load_relaxed(wh_words_tag(&B->keys, place)) == WH_WORD_EMPTY &&
                  wh_load_relaxed(wh_words_check(&B->keys, place)) == 0 &&
                  wh_load_relaxed(wh_words_value(&B->keys, place)) == 0,
              "place %u is lost: tag %llx, value %llx", place,
              (ull)wh_load_relaxed(wh_words_tag(&B->keys, place)),
              (ull)wh_load_relaxed(wh_words_value(&B->keys, place)));
    }
    for (uint32_t number = 0; number < WH_WORD_CHOICES; number++) {
        worker *w = number % 2 ? B : C;
        CHECK(key_schedule(w, number, WH_KEY_RAISE, (plan){.delay = FAR_NS, .to = w->row}) ==
                  WH_CALL_OK,
              "key %u cannot be claimed", number);
    }
    keys_check();
    for (uint32_t number = 0; number < WH_WORD_CHOICES; number++)
        key_cancel(B, number);
    crew_settle();
    CHECK(wh_client_ready(&B->client) == 0, "cancelled timers fired");
}

/* Keys and fillers of two sets, either of which is the lower one; `taken` of the places are. */
static void keys_begin(uint32_t taken)
{
    S->own = arena_take(sizeof(keybook));
    if (crew_keeps)
        crew_joins(&S->workers[1]); /* what falls due has a receiver */
    BOOK->first = dice(2) << 63; /* its low bit is always set */
    BOOK->second = ~BOOK->first & 1ull << 63;
    for (uint32_t number = 0; number < ALL_KEYS; number++)
        snprintf(BOOK->bytes[number], sizeof *BOOK->bytes, "%08u%052u", number, number);
    for (uint32_t n = 0; n < taken; n++)
        CHECK(key_schedule(dice(2) ? B : C, KEYS + n, WH_KEY_RAISE,
                           (plan){.delay = FAR_NS, .to = 1}) == WH_CALL_OK,
              "no room for filler %u", n);
    clock_work();
}

/* -- the death of a worker --------------------------------------------------------------------- */

/* Has the dead worker ended a timer for this one, which the clock lets have its key then? */
static bool key_comes_to(const worker *dead, const entry *e)
{
    const wh_worker_seg *seg = S->segments[dead->row];
    uint64_t before = wh_load_relaxed(&seg->replacing);
    int live;
    return BOOK->kept && before && e->key == MINE + 1 && key_word(MINE, &live) == before &&
           wh_load_relaxed(&seg->replacer) == e->id &&
           wh_state_phase(state_now(before)) == WH_CANCELLED;
}

/* After worker_dies(): a timer that it had armed and that its key does not name is dropped,
 * whatever the policy; one from which it had taken the key ends as if it had cancelled it. */
static void keys_bury(worker *dead)
{
    keys_note();
    for (uint32_t i = 0; i < S->book.count; i++) {
        entry *e = &S->book.entries[i];
        int live;
        if (!e->key || !e->id || !e->used || entry_over(e) || e->flight != LANDED ||
            !armed_now(e->id) || key_word(e->key - 1u, &live) == e->id || key_comes_to(dead, e) ||
            e->takes ||
            (BOOK->half.kind != HALF_NONE && e->owner != dead->row &&
             (BOOK->half.id == e->id || BOOK->half.before == e->id)))
            continue; /* that worker ends or names it */
        if (wh_load_relaxed(&((wh_worker_seg *)S->segments[dead->row])->replacing) == e->id) {
            entry_ended(e);
        } else {
            e->dropped = 1;
            S->unnamed[dead->row]++;
        }
    }
}

#endif
