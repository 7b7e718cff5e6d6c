/* Keys: has a key one timer, whoever claims it, whoever dies on the way; and is it free only when it has none?
 *
 * Each worker arms a timer and lets the key's word name it: it refuses if a timer has the key, or replaces that. The
 * clock fires any armed timer that is named, if it was linked or if its predecessor had died. Worker 0 may die at any
 * step; then the clock reaps it, drops its timers or keeps them (KEEP=1), and may die on the way, to begin again. With
 * RETIRE=1 somebody gives up the place of the key when its timer has ended, and may stop half way for ever; who comes
 * then makes another one (words.pml: of a key at most one place is live). With FIND=1 somebody looks the key up. With
 * HELD=1 a timer that has fired keeps the key until it is acknowledged, and who replaces one ends it first.
 *
 * Holds: what fires was named, and is not what a call that returned has replaced. When nothing moves any more, an
 * armed timer is the one that its key names; what a call has named, or a kept worker that died, is armed, fired or
 * replaced. Who is told that a key is free has looked while it was. With HELD, no two have fired and are not
 * acknowledged; and whoever ends a timer for another one leaves the key with a timer, even if it dies, unless that one
 * is dropped with it.
 *
 * RUN: -DWORKERS=2 -DTRIES=2 -DRETIRE=1
 * RUN: -DWORKERS=2 -DTRIES=2 -DRETIRE=1 -DKEEP=1
 * RUN: -DWORKERS=3 -DTRIES=1
 * RUN: -DWORKERS=3 -DTRIES=1 -DKEEP=1
 * RUN: -DWORKERS=2 -DTRIES=2 -DRETIRE=1 -DFIND=1 -DDEATHS=0
 * RUN: -DWORKERS=2 -DTRIES=2 -DRETIRE=1 -DHELD=1
 * RUN: -DWORKERS=2 -DTRIES=2 -DRETIRE=1 -DHELD=1 -DKEEP=1
 * RUN: -DWORKERS=3 -DTRIES=1 -DHELD=1 -DKEEP=1
 *
 * MUTANT 1: a worker names its timer by a store, not by a compare-and-swap
 * MUTANT 2: the clock does not look whether the timer is named
 * MUTANT 3: a worker that takes a key does not end the timer that had it
 * MUTANT 4: a worker does not note the timer that it takes the key from
 * MUTANT 5: a worker notes that timer behind the compare-and-swap
 * MUTANT 6: the reap does not look at what the dead worker has noted
 * MUTANT 7 [-DWORKERS=2 -DTRIES=2 -DKEEP=1]: a timer that was armed and not named is kept with its worker
 * MUTANT 8: the place of a key is given up although its timer is armed
 * MUTANT 9: a claim names its timer in a place that is given up
 * MUTANT 10: a place is given up by a store, though a claim may have named its timer meanwhile
 * MUTANT 11: a claim waits for who has begun to give up the place
 * MUTANT 12 [-DWORKERS=2 -DTRIES=2 -DKEEP=1]: a timer says behind its naming whose it is
 * MUTANT 13 [-DWORKERS=2 -DTRIES=1 -DFIND=1 -DDEATHS=0]: who finds that the timer has ended does not read the word again
 * MUTANT 14: the reap ends what is noted even if the key still names it
 * MUTANT 15 [-DWORKERS=2 -DTRIES=1 -DHELD=1]: who replaces a timer that would keep its key names its own first
 * MUTANT 16 [-DWORKERS=2 -DTRIES=1 -DHELD=1 -DKEEP=1]: the reap does not name what was to get the key
 * MUTANT 17 [-DWORKERS=2 -DTRIES=1 -DHELD=1 -DKEEP=1 -DRETIRE=1]: a place is given up between the end of a timer and the name of the next
 * MUTANT 18 [-DWORKERS=2 -DTRIES=1 -DHELD=1]: a claim takes a key whose timer has fired for free
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef TRIES
#define TRIES 2
#endif
#ifndef RETIRE
#define RETIRE 0
#endif
#ifndef FIND
#define FIND 0
#endif
#ifndef KEEP
#define KEEP 0
#endif
#ifndef HELD
#define HELD 0
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#define IDS (WORKERS * TRIES + 1) /* 0: none */
#define PLACES (TRIES + 1)        /* a place is not used again while somebody may look at it */
#define CLOSED 255
#define NOWHERE PLACES

mtype = { NEVER, ARMED, CANCELLED, FIRED, DONE };

/* Shared memory. */
mtype state[IDS] = NEVER;
byte room[IDS] = NOWHERE; /* key_room.place */
byte word[PLACES + 1];
byte live = NOWHERE, made; /* the key's place; how many there were */
byte replacing[WORKERS];   /* worker_seg.replacing */
byte replacer[WORKERS];    /* worker_seg.replacer */
bool touching[WORKERS];    /* key_row.touching: the place; until the supervisor lets go for a dead worker */

/* For the checks. */
bool dead, reaped, done[WORKERS], named[IDS], returned[IDS], replaced[IDS], ended[IDS];
bool looking, was_free;
bool bare; /* a timer was ended for another one, which has not got its key yet */
byte fired; /* and not acknowledged */

/* slot.h:wh_slot_has_key */
#define HAS_KEY(timer) (state[timer] == ARMED || (HELD && MUTANT != 18 && state[timer] == FIRED))
#define HAS_TIMER (live != NOWHERE && word[live] != CLOSED && state[word[live]] == ARMED)
#define NOTE was_free = was_free || !HAS_TIMER

/* -- workers -------------------------------------------------------------------------------------- */

#define MAY_DIE if :: DEATHS && me == 0 && !dead -> goto died :: true fi

/* slot.h:wh_slot_cancel */
inline cancel(timer)
{
    if
    :: state[timer] == ARMED -> state[timer] = CANCELLED
    :: else
    fi;
    NOTE
}

proctype Worker(byte me)
{
    byte tries, id, place = NOWHERE, found, before;
    bool replace;
    if
    :: replace = true
    :: replace = false
    fi;
again:
    MAY_DIE;
    if
    :: tries == TRIES -> goto end_out
    :: else
    fi;
    atomic { /* directory.h:wh_words_hold, directory.h:wh_words_make */
        if
        :: live == NOWHERE && made < PLACES -> live = made; made++
        :: live == NOWHERE && made == PLACES -> goto end_out
        :: else
        fi;
        place = live;
        touching[me] = true;
        found = word[place];
    };
    atomic {
        if
        :: found == CLOSED -> /* directory.h:wh_keys_retire, by one who may stand still */
            found = 0;
            if
            :: live == place && MUTANT != 11 -> live = NOWHERE
            :: live != place
            fi;
            goto again
        :: else -> found = 0
        fi
    };
    MAY_DIE;
    atomic { /* keys.h:wh_key_write, client.h:wh_client_arm */
        id = me * TRIES + tries + 1;
        tries++;
#if MUTANT != 12
        room[id] = place;
#endif
        state[id] = ARMED
    };
    MAY_DIE;
look: /* keys.h:wh_key_name */
    found = word[place];
    if
    :: found == CLOSED && MUTANT != 9 -> goto refused
    :: else
    fi;
    atomic {
        before = 0;
        if
        :: found != CLOSED && HAS_KEY(found) -> before = found
        :: else
        fi
    };
    if
    :: before && !replace -> goto refused
    :: else
    fi;
#if HELD && MUTANT != 15
    if
    :: before -> /* keys.h:wh_key_end_first */
        replacer[me] = id;
        replacing[me] = before;
        MAY_DIE;
        atomic {
            if
            :: state[before] == ARMED -> cancel(before); bare = true
            :: else -> goto refused
            fi
        };
        MAY_DIE;
        atomic {
            if
            :: word[place] == found -> word[place] = id; named[id] = true; replaced[before] = true; bare = false; before = 0
            :: else -> found = CLOSED; goto refused /* another worker has found the key free: once more */
            fi
        };
        goto has_named
    :: else
    fi;
#endif
#if MUTANT != 4 && MUTANT != 5
    if
    :: before -> replacing[me] = before
    :: else
    fi;
#endif
    MAY_DIE;
    atomic {
        if
        :: word[place] == found || MUTANT == 1 ->
            if
            :: word[place] != CLOSED && word[place] -> replaced[word[place]] = true
            :: else
            fi;
            word[place] = id;
            named[id] = true;
            bare = false;
            NOTE
        :: else -> goto look
        fi
    };
has_named:
    MAY_DIE;
#if MUTANT == 5
    replacing[me] = before;
    MAY_DIE;
#endif
#if MUTANT == 12
    room[id] = place;
    MAY_DIE;
#endif
#if MUTANT != 3
    atomic { /* keys.h:wh_key_replaced */
        if
        :: before -> cancel(before)
        :: else
        fi
    };
#endif
    MAY_DIE;
    replacing[me] = 0;
    MAY_DIE;
    touching[me] = false;
    atomic {
        returned[id] = true;
        ended[before] = before != 0;
        goto end_out
    };
refused:
    MAY_DIE;
    atomic { cancel(id) };
    MAY_DIE;
    atomic { replacing[me] = 0; touching[me] = false };
    if
    :: found == CLOSED -> goto again
    :: else -> goto end_out
    fi;
died:
    dead = true;
    goto end_gone;
end_out:
    done[me] = true;
end_gone:
    false
}

/* directory.h:wh_keys_retire, which may stop at any step, for ever */
proctype Retirer()
{
    byte place, id;
    atomic { live != NOWHERE && word[live] != CLOSED -> place = live; id = word[place] };
    if
    :: !HAS_KEY(id) || MUTANT == 8
    :: HAS_KEY(id) && MUTANT != 8 -> goto end_stopped
    fi;
#if HELD && MUTANT != 17
    if /* directory.h:wh_keys_handed */
    :: touching[0] || touching[1] || touching[WORKERS - 1] -> goto end_stopped
    :: else
    fi;
#endif
    atomic {
        if
        :: word[place] == id || MUTANT == 10 -> word[place] = CLOSED; NOTE
        :: else -> goto end_stopped
        fi
    };
    if
    :: goto end_stopped
    :: true
    fi;
    atomic {
        if
        :: live == place -> live = NOWHERE; NOTE
        :: else
        fi
    };
end_stopped:
    false
}

/* keys.h:wh_key_look */
proctype Finder()
{
    byte id, ended_id;
    looking = true;
    was_free = !HAS_TIMER;
    do
    :: atomic { /* keys.h:wh_key_look */
            id = (live == NOWHERE -> 0 : (word[live] == CLOSED -> 0 : word[live]));
            if
            :: id == ended_id -> assert(was_free); goto end_found
            :: else
            fi
        };
        atomic {
            if
            :: state[id] == ARMED -> goto end_found
            :: else -> ended_id = id
            fi
        };
#if MUTANT == 13
        assert(was_free);
        goto end_found
#endif
    od;
end_found:
    false
}

/* -- the clock ------------------------------------------------------------------------------------ */

/* fire.h:wh_is_named */
#define IS_NAMED(timer) (room[timer] != NOWHERE && word[room[timer]] == timer)
#define IS_DUE(timer) (state[timer] == ARMED && (IS_NAMED(timer) || MUTANT == 2))

active proctype Clock()
{
    byte timer, kills, i, noted;
end_waits:
    do
    :: atomic { /* fire.h:wh_expire: any that is due */
            if
            :: IS_DUE(1) -> timer = 1
            :: IS_DUE(2) -> timer = 2
#if WORKERS * TRIES > 2
            :: IS_DUE(3) -> timer = 3
#endif
#if WORKERS * TRIES > 3
            :: IS_DUE(4) -> timer = 4
#endif
            fi
        };
        atomic { /* fire.h:wh_fire_once */
            if
            :: state[timer] == ARMED ->
                state[timer] = FIRED;
                assert(named[timer] && !ended[timer]);
                fired++;
                assert(!HELD || fired == 1);
                NOTE
            :: else
            fi;
            timer = 0
        }
#if HELD
    :: atomic { /* slot.h:wh_offer_done, by whom it was delivered to, if ever */
            if
            :: state[1] == FIRED -> state[1] = DONE
            :: state[2] == FIRED -> state[2] = DONE
#if WORKERS * TRIES > 2
            :: state[3] == FIRED -> state[3] = DONE
#endif
#if WORKERS * TRIES > 3
            :: state[4] == FIRED -> state[4] = DONE
#endif
            fi;
            fired--
        }
#endif
    :: dead && !reaped ->
reap:   /* reap.h:wh_reap_replaced */
        noted = replacing[0];
        if
#if MUTANT != 6
        :: noted && (!IS_NAMED(noted) || MUTANT == 14) -> atomic { cancel(noted) }
#endif
#if HELD && MUTANT != 16
        :: noted && IS_NAMED(noted) && MUTANT != 14 -> /* reap.h:wh_reap_replacer */
            i = replacer[0];
            if
            :: state[noted] == CANCELLED && state[i] == ARMED ->
                atomic {
                    if
                    :: word[room[noted]] == noted ->
                        word[room[noted]] = i; named[i] = true; replaced[noted] = true; bare = false
                    :: else
                    fi
                }
            :: else
            fi
#endif
        :: else
        fi;
        i = 1;
        do
        :: i <= TRIES -> /* reap.h:wh_reclaim, reassign.h:wh_end_private */
            atomic {
                if
                :: !KEEP || (!IS_NAMED(i) && MUTANT != 7) -> cancel(i)
                :: else
                fi;
                i++
            }
        :: i > TRIES -> break
        :: kills == 0 -> kills++; goto reap /* it died; the next one begins again */
        od;
        atomic { i = 0; noted = 0; kills = 0; reaped = true; touching[0] = false }
    od
}

init {
    byte i;
    atomic {
        for (i : 0 .. WORKERS - 1) { run Worker(i) };
        if
        :: RETIRE -> run Retirer()
        :: else
        fi;
        if
        :: FIND -> run Finder()
        :: else
        fi
    };
    i = 0;
    /* Everyone has returned or died: and whatever is not fired yet may never be. */
    atomic {
        (done[0] || (dead && reaped)) && done[1] && (WORKERS == 2 || done[WORKERS - 1]) ->
        for (i : 1 .. IDS - 1) {
            assert(state[i] != ARMED || (live != NOWHERE && word[live] == i && IS_NAMED(i)));
            assert(!returned[i] || state[i] != CANCELLED || replaced[i] ||
                   (dead && i <= TRIES && !KEEP));
            assert(!(dead && KEEP && named[i]) || state[i] != CANCELLED || replaced[i])
        }
        assert(!bare || (dead && !KEEP))
    }
}
