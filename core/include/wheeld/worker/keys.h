/* Keys: timers found by what they are for: claimed, replaced, moved and cancelled by any worker.
 *
 * Idea. The word of a key (directory.h) is the id of its timer. The key is taken while that timer
 * is armed; so it is free in the very instant in which the timer fires, is cancelled, or is dropped
 * with its owner, and nobody has to say so. A timer with a key fires only while the word names it.
 *
 *     worker                                   clock
 *     arms the timer, in its own slot          is it due, and does the word name it?
 *     word: what it was -> its id (CAS)        no: looks again a moment later
 *     cancels the timer that had the key       yes: ARMED -> FIRED (CAS)
 *     submits both
 *
 * The compare-and-swap of the word decides between claims. A worker that dies before it leaves an
 * armed timer that never fires, and that its death ends, whatever its policy (reassign.h); one that
 * dies behind it has left word of the timer that it replaced, which the clock then ends (reap.h).
 *
 * A timer with WH_HELD keeps its key until its event is acknowledged. Nobody takes it then, so one
 * that replaces it ends it first, while it is armed, and names its own behind that. If it dies in
 * between, the clock lets the word name that one.
 *
 * A timer's key stands in the room of its slot, so it can be read as long as its event can.
 *
 * Invariants
 *  1. At most one timer of a key can fire, whatever is armed: the one that the word names. One that
 *     has fired, and comes again from a snapshot because nobody has read it, needs no word.
 *  2. `replacing` is stored before the word no longer names that timer, and cleared behind its end;
 *     `replacer` before it.
 *  3. Room comes first, as in calls.h: a call that does not end with WH_CALL_OK or WH_CALL_TAKEN
 *     has left what was there.
 *  4. Nothing is touched while the call waits: it finds its place anew afterwards.
 */
#ifndef WHEELD_KEYS_H
#define WHEELD_KEYS_H

#include "wheeld/sharing/directory.h"
#include "wheeld/worker/calls.h"

typedef struct wh_key {
    wh_word_key word;
    const char *bytes; /* encoded: native/shared/keys_part.c */
    uint32_t size;
} wh_key;

/* If a timer already has the key: refuse; let it be; end it; or move it later or earlier. */
enum wh_conflict { WH_KEY_RAISE, WH_KEY_KEEP, WH_KEY_REPLACE, WH_KEY_LATER, WH_KEY_EARLIER };

/* `token`: the wheel's, so that nobody outside of the daemon can choose keys of one set. */
static inline wh_key wh_key_of(const char *bytes, uint32_t size, uint64_t token)
{
    uint64_t hash[2] = {wh_hash_add(token, 'k'), wh_hash_add(~token, 'K')};
    wh_hash_both(hash, 'k', bytes, size);
    return (wh_key){wh_words_key(hash[0], hash[1], WH_WORD_TIMER), bytes, size};
}

/* The key of a slot's timer; NULL: there is no such slot, or no memory for its key. The bytes may
 * change once the slot has another tenant. */
static inline const char *wh_key_in(wh_keys *k, uint32_t slot, uint32_t *size)
{
    *size = 0;
    if (slot >= k->capacity || !wh_keys_there(k, &k->rooms[slot], sizeof(wh_key_room)))
        return NULL;
    const wh_key_room *room = &k->rooms[slot];
    uint32_t found = wh_load_relaxed((wh_au16 *)&room->size);
    *size = found < WH_LONG_KEY ? found : WH_LONG_KEY;
    if (*size <= sizeof room->key)
        return room->key;
    const char *bytes = k->long_rooms + (uint64_t)slot * WH_LONG_KEY;
    if (wh_keys_there(k, bytes, *size))
        return bytes;
    *size = 0;
    return NULL;
}

/* -- finding ----------------------------------------------------------------------------------- */

/* The id of the timer that has the key; `fired`: or of one that has fired and keeps it; 0: none,
 * and *last is the key's last one, or 0. A timer may have ended because another one has got its
 * key: only if the word still names it was the key free. */
static inline uint64_t wh_key_look(wh_keys *k, const wh_key *key, bool fired, uint64_t *last)
{
    uint64_t id = wh_words_peek(k, &key->word);
    wh_keys_fetch(k, id);
    for (*last = 0; id != *last; id = wh_words_peek(k, &key->word)) {
        if (fired ? wh_keys_taken(k, id) : wh_keys_pending(k, id))
            return id;
        *last = id;
    }
    return 0;
}

/* The id of the armed timer that has the key; 0: there is none. */
static inline uint64_t wh_key_pending(wh_keys *k, const wh_key *key)
{
    return wh_key_look(k, key, false, &(uint64_t){0});
}

/* The same, or of one that has fired and keeps the key. */
static inline uint64_t wh_key_holder(wh_keys *k, const wh_key *key)
{
    return wh_key_look(k, key, true, &(uint64_t){0});
}

/* -- claiming ---------------------------------------------------------------------------------- */

/* Write the key into the room of a slot that this worker holds. */
static inline void wh_key_write(wh_keys *k, uint32_t slot, const wh_key *key, uint32_t place)
{
    wh_key_room *room = &k->rooms[slot];
    bool fits = key->size <= sizeof room->key;
    wh_store_relaxed(&room->place, place);
    wh_store_relaxed(&room->size, (uint16_t)key->size);
    memcpy(fits ? room->key : k->long_rooms + (uint64_t)slot * WH_LONG_KEY, key->bytes, key->size);
}

/* Is there memory for the key of a slot's timer? */
static inline bool wh_key_room_there(wh_keys *k, uint32_t slot, uint32_t size)
{
    return wh_keys_there(k, &k->rooms[slot], sizeof(wh_key_room)) &&
           (size <= sizeof k->rooms[slot].key ||
            wh_keys_there(k, k->long_rooms + (uint64_t)slot * WH_LONG_KEY, size));
}

/* End a timer that would keep its key, once fired, before `id` gets that. */
static wh_seldom enum wh_call wh_key_end_first(wh_client *c, wh_keys *k, uint64_t before,
                                               uint64_t id)
{
    wh_store_relaxed(&c->seg->replacer, id);
    wh_step();
    wh_store_seq(&c->seg->replacing, before); /* pairs: replace - with `replacer` */
    wh_step();
    if (!wh_client_cancel(c, before))
        return wh_keys_taken(k, before) ? WH_CALL_KEY_HELD : WH_CALL_OVER;
    wh_count(&c->seg->cancelled, 1);
    wh_step();
    return WH_CALL_OK;
}

/* Let the word of `place`, which is touched, name the armed timer `id`. WH_CALL_OK: it does, and
 * *before is the armed timer that it named, or 0. WH_CALL_TAKEN: an armed timer has the key, and
 * stays. WH_CALL_KEY_HELD: *before, which has fired, has it. WH_CALL_OVER: look again. */
static inline enum wh_call wh_key_name(wh_client *c, wh_keys *k, uint32_t place, uint64_t id,
                                       bool replace, uint64_t *before)
{
    wh_au64 *word = wh_words_value(k, place);
    uint64_t found = wh_load_seq(word); /* pairs: word-value */
    do {
        if (found == WH_KEY_CLOSED)
            return WH_CALL_OVER;
        *before = found && wh_keys_taken(k, found) ? found : 0;
        if (*before && !replace)
            return WH_CALL_TAKEN;
        if (*before && wh_load_relaxed(&k->slots[wh_id_slot(found)].flags) & WH_HELD) {
            enum wh_call ended = wh_key_end_first(c, k, found, id);
            if (ended != WH_CALL_OK)
                return ended;
            *before = 0;
            /* pairs: word-value - another worker may have found the key free */
            return wh_cas_seq(word, &found, id) ? WH_CALL_OK : WH_CALL_OVER;
        }
        if (*before) /* pairs: replace - if we die, the clock ends it */
            wh_store_seq(&c->seg->replacing, *before);
        wh_step();
        /* pairs: word-value, replace - acq_rel: what is armed can fire from here on */
    } while (!wh_cas_seq(word, &found, id));
    return WH_CALL_OK;
}

/* End the timer that this worker has taken the key from. */
static inline void wh_key_replaced(wh_client *c, uint64_t id)
{
    if (wh_client_cancel(c, id))
        wh_count(&c->seg->cancelled, 1);
}

/* Before a slot of ours gets a tenant with WH_HELD: nobody takes its flags for those of the tenant
 * that it had. */
static wh_seldom void wh_key_part(const wh_client *c, uint32_t slot, uint32_t flags)
{
    uint64_t state = wh_load_relaxed(&c->states[slot]);
    if (wh_state_phase(state) == WH_FIRED)
        /* pairs: held - stored before the flags */
        wh_store_release(&c->states[slot], wh_state(wh_state_gen(state), WH_DONE));
    wh_step();
    /* pairs: held - who sees these sees the end of that one */
    wh_store_release(&c->slots[slot].flags, (uint16_t)flags);
}

/* One try to arm the timer under the key; `absent`: it had no place a moment ago. WH_CALL_OVER:
 * look again. */
static inline enum wh_call wh_key_try(wh_client *c, wh_keys *k, const wh_key *key,
                                      const wh_request *r, uint32_t slot, bool replace, bool absent,
                                      uint64_t *id)
{
    uint64_t before = 0;
    uint32_t place = wh_words_hold(k, &key->word, absent);
    if (place == WH_NIL) {
        wh_client_drop_payload(c, slot, r);
        wh_slabs_give(&c->slabs, slot);
        return WH_CALL_KEYS_FULL;
    }
    wh_key_write(k, slot, key, place);
    if (wh_unlikely(r->flags & WH_HELD))
        wh_key_part(c, slot, r->flags);
    *id = wh_client_arm(c, slot, r);
    wh_count(&c->seg->scheduled, 1);
    wh_step();
    enum wh_call named = wh_key_name(c, k, place, *id, replace, &before);
    wh_step();
    if (named != WH_CALL_OK)
        wh_key_replaced(c, *id);
    if (wh_unlikely(named == WH_CALL_KEY_HELD))
        *id = before;
    else if (named == WH_CALL_OK && before)
        wh_key_replaced(c, before);
    wh_step();
    if (wh_unlikely(wh_load_relaxed(&c->seg->replacing)))
        wh_store_seq(&c->seg->replacing, 0); /* pairs: replace */
    wh_words_let_go(k);
    if (named == WH_CALL_OK)
        wh_client_push(c, *id);
    return named;
}

/* The timer `id` has the key: move it as the request says, if that is later or earlier. */
static inline enum wh_call wh_key_move(wh_client *c, uint64_t id, const wh_request *r, int64_t rest,
                                       enum wh_direction direction, bool wait, int64_t *earliest)
{
    bool tell;
    uint32_t slot = wh_id_slot(id), kind = wh_client_kind(c, id);
    enum wh_call room = wh_client_have_room(c, 1, wait);
    if (room != WH_CALL_OK)
        return room;
    int64_t deadline = kind == wh_flags_clock(r->flags)
                           ? r->deadline
                           : wh_time_add(wh_client_now_of(c, kind), rest);
    if (!wh_slot_move_if(&c->states[slot], &c->slots[slot], wh_id_gen(id), deadline, direction,
                         wh_time_sub(deadline, rest), &tell))
        return WH_CALL_OVER;
    tell |= wh_load_relaxed(&c->slots[slot].interval) > 0; /* a new grid */
    wh_count(&c->seg->rescheduled, 1);
    if (tell) {
        int64_t due = wh_time_add(wh_client_now(c), rest);
        *earliest = due < *earliest ? due : *earliest;
        wh_client_push(c, wh_id_with(id, WH_OP_RESCHEDULE));
    }
    return WH_CALL_TAKEN;
}

/* A caller has just looked for a key, or not: its last timer has ended, or it has no place. */
enum wh_key_seen { WH_KEY_UNSEEN, WH_KEY_ENDED, WH_KEY_ABSENT };

/* One turn of wh_key_schedule(). WH_CALL_OVER: another one is needed. */
static inline enum wh_call wh_key_turn(wh_client *c, wh_keys *k, const wh_key *key,
                                       enum wh_key_seen seen, const wh_request *r, int64_t rest,
                                       enum wh_conflict conflict, bool wait, uint64_t *id,
                                       int64_t *earliest)
{
    uint32_t slot;
    uint64_t last = 0;
    bool look = conflict != WH_KEY_REPLACE && seen == WH_KEY_UNSEEN;
    *id = look ? wh_key_look(k, key, true, &last) : 0;
    if (*id && conflict < WH_KEY_REPLACE)
        return WH_CALL_TAKEN;
    if (*id && !wh_keys_pending(k, *id))
        return wh_keys_taken(k, *id) ? WH_CALL_KEY_HELD : WH_CALL_OVER;
    if (*id)
        return wh_key_move(c, *id, r, rest,
                           conflict == WH_KEY_LATER ? WH_MOVE_LATER : WH_MOVE_EARLIER, wait,
                           earliest);
    /* only now: a call that arms nothing needs no room */
    enum wh_call call;
    if (wh_unlikely(r->flags & WH_DETACHED) &&
        (call = wh_client_detached_room(c, 1, wait)) != WH_CALL_OK)
        return call;
    /* a cancel, of this one or of the one that it replaces, and its own submission */
    if ((call = wh_client_have_slot(c, 2, wait, &slot)) != WH_CALL_OK)
        return call;
    if (!wh_key_room_there(k, slot, key->size)) {
        wh_slabs_give(&c->slabs, slot);
        return WH_CALL_KEYS_FULL;
    }
    wh_request armed = *r;
    if (!wh_client_place_payload(c, slot, &armed)) {
        wh_slabs_give(&c->slabs, slot);
        call = wh_client_more_heap(c, r->payload_size, wait);
        return call == WH_CALL_OK ? WH_CALL_OVER : call;
    }
    bool absent = look ? last == 0 : seen == WH_KEY_ABSENT;
    call = wh_key_try(c, k, key, &armed, slot, conflict == WH_KEY_REPLACE, absent, id);
    if (call == WH_CALL_OK) {
        int64_t due = wh_flags_clock(r->flags) == WH_CLOCK_BASE
                          ? r->deadline
                          : wh_time_add(wh_client_now(c), rest);
        *earliest = due < *earliest ? due : *earliest;
    }
    return call == WH_CALL_TAKEN ? WH_CALL_OVER : call; /* by whom is seen in the next turn */
}

/* Arm a timer under a key, without publishing it; `rest`: ns from now until it is due. WH_CALL_OK:
 * *id has the key. WH_CALL_TAKEN: *id had it, and still has; moved, if the conflict says so.
 * WH_CALL_KEY_HELD: *id has it, and neither ends nor moves. */
static inline enum wh_call wh_key_schedule(wh_client *c, wh_keys *k, const wh_key *key,
                                           enum wh_key_seen seen, const wh_request *r, int64_t rest,
                                           enum wh_conflict conflict, bool wait, uint64_t *id,
                                           int64_t *earliest)
{
    enum wh_call call;
    if (!wh_words_there(k, &key->word))
        return WH_CALL_KEYS_FULL;
    if (r->payload_size > wh_client_most_payload(c))
        return WH_CALL_LONG_PAYLOAD;
    do {
        call = wh_key_turn(c, k, key, seen, r, rest, conflict, wait, id, earliest);
        seen = WH_KEY_UNSEEN;
    } while (call == WH_CALL_OVER);
    return call;
}

static inline enum wh_call wh_call_schedule_key(wh_client *c, wh_keys *k, const wh_key *key,
                                                const wh_request *r, int64_t rest,
                                                enum wh_conflict conflict, bool wait, uint64_t *id)
{
    int64_t earliest = INT64_MAX;
    wh_request keyed = *r;
    keyed.flags |= WH_KEYED;
    enum wh_call call =
        wh_key_schedule(c, k, key, WH_KEY_UNSEEN, &keyed, rest, conflict, wait, id, &earliest);
    if (call != WH_CALL_GONE && call != WH_CALL_STOPPED) {
        if (earliest != INT64_MAX)
            wh_client_publish(c, earliest);
        else
            wh_client_publish_lazily(c);
    }
    return call;
}

/* -- by key ------------------------------------------------------------------------------------ */

/* Cancel the timer of a key. */
static inline enum wh_call wh_call_cancel_key(wh_client *c, wh_keys *k, const wh_key *key,
                                              bool wait, uint64_t *id)
{
    if (!wh_words_there(k, &key->word))
        return WH_CALL_KEYS_FULL;
    for (;;) {
        *id = wh_key_pending(k, key);
        enum wh_call call = *id ? wh_call_cancel(c, *id, wait) : WH_CALL_OVER;
        /* it ended meanwhile; another one may have the key now */
        if (call != WH_CALL_OVER || *id == 0)
            return call;
    }
}

/* Move the timer of a key to `delay` from now; `interval`: its new period, 0: as it is. */
static inline enum wh_call wh_call_reschedule_key(wh_client *c, wh_keys *k, const wh_key *key,
                                                  int64_t delay, int64_t interval, bool wait,
                                                  uint64_t *id)
{
    if (!wh_words_there(k, &key->word))
        return WH_CALL_KEYS_FULL;
    for (;;) {
        *id = wh_key_pending(k, key);
        enum wh_call call = *id == 0   ? WH_CALL_OVER
                            : interval ? wh_call_reschedule_every(c, *id, delay, interval, wait)
                                       : wh_call_reschedule(c, *id, delay, wait);
        if (call != WH_CALL_OVER || *id == 0)
            return call;
    }
}

/* Let the timer of a key be due no earlier than `delay` from now. */
static inline enum wh_call wh_call_extend_key(wh_client *c, wh_keys *k, const wh_key *key,
                                              int64_t delay, bool wait, uint64_t *id)
{
    if (!wh_words_there(k, &key->word))
        return WH_CALL_KEYS_FULL;
    for (;;) {
        *id = wh_key_pending(k, key);
        enum wh_call call = *id ? wh_call_extend(c, *id, delay, wait) : WH_CALL_OVER;
        if (call != WH_CALL_OVER || *id == 0)
            return call;
    }
}

/* Has the key's last timer fired, and is nobody done with its event yet? */
static inline bool wh_key_unread(wh_keys *k, const wh_key *key)
{
    uint64_t id = wh_words_peek(k, &key->word);
    if (id == 0 || wh_id_slot(id) >= k->capacity)
        return false;
    uint64_t state = wh_load_acquire(&k->states[wh_id_slot(id)]); /* pairs: fire, offer */
    return wh_state_gen(state) == wh_id_gen(id) &&
           (wh_state_phase(state) == WH_FIRED || wh_state_phase(state) == WH_TAKEN);
}

/* Pause the timer of a key. */
static inline enum wh_call wh_call_pause_key(wh_client *c, wh_keys *k, const wh_key *key)
{
    uint64_t id;
    if (!wh_words_there(k, &key->word))
        return WH_CALL_KEYS_FULL;
    while ((id = wh_key_pending(k, key)))
        if (wh_call_pause(c, id) == WH_CALL_OK)
            return WH_CALL_OK;
    return WH_CALL_OVER;
}

/* Let the paused timer of a key go on. */
static inline enum wh_call wh_call_resume_key(wh_client *c, wh_keys *k, const wh_key *key,
                                              bool wait)
{
    uint64_t id;
    if (!wh_words_there(k, &key->word))
        return WH_CALL_KEYS_FULL;
    while ((id = wh_key_pending(k, key))) {
        enum wh_call call = wh_call_resume(c, id, wait);
        if (call != WH_CALL_OVER)
            return call;
    }
    return WH_CALL_OVER;
}

/* -- the supervisor ---------------------------------------------------------------------------- */

/* Give a timer of a snapshot, which is armed later, its key again; `claims`: the word, too. Before
 * any other process is there; no two timers claim one key. False: there is no room. */
static inline bool wh_key_restore(wh_keys *k, const wh_key *key, uint64_t id, bool claims)
{
    uint32_t place = WH_NIL;
    if (wh_id_slot(id) >= k->capacity || !wh_key_room_there(k, wh_id_slot(id), key->size) ||
        !wh_words_there(k, &key->word))
        return false;
    if (claims && (place = wh_words_empty_place(k, &key->word)) == WH_NIL)
        return false;
    wh_key_write(k, wh_id_slot(id), key, place);
    if (claims) {
        wh_store_relaxed(wh_words_check(k, place), key->word.check);
        wh_store_seq(wh_words_value(k, place), id);            /* pairs: word-value */
        wh_store_seq(wh_words_tag(k, place), key->word.live); /* pairs: word-tag */
        wh_words_count(k->mine->made, key->word.live);
    }
    return true;
}

#endif
