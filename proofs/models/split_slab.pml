/* Split slab: one slab of two slots between its owner, another worker and the clock.
 *
 * Each worker arms what it may use, reads its return ring, parks, claims and asks. The clock ends timers,
 * takes a parked slab over for who asks, hands slots out of its free list, and frees the slab when all of it is
 * in the free list. A worker may stand still between any two steps.
 *
 * Holds: who arms a slot holds it, and it is in nobody else's hands; a slot is in the free list exactly if its holder is
 * nobody; when nothing moves any more each slot is known to be free by the worker who holds it, or in the free list, or
 * the slab is nobody's.
 *
 * RUN: -DARMS=2
 * RUN: -DARMS=3
 *
 * MUTANT 1: a slab is unparked by a store, not compared
 * MUTANT 2 [-DARMS=3]: what is free of a parked slab is used without unparking it
 * MUTANT 3 [-DARMS=3]: the clock sets no mark before it looks, and compares with the parked word alone
 * MUTANT 4 [-DARMS=3]: the clock makes a slab split by a store, not compared
 * MUTANT 5 [-DARMS=5]: an entry about a split slab is believed when its reader holds the slot, wherever it got it
 * MUTANT 6 [-DARMS=3]: who claims a slab does not read its ring to the end
 * MUTANT 7 [-DARMS=3]: the holder of a slot is written after its entry is out
 * MUTANT 8 [-DARMS=3]: a slab is parked with a slot in hand
 * MUTANT 9 [-DARMS=3]: what is not published yet of the owner's returns is left so when its slab is taken over
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define SLOTS 2
#ifndef ARMS
#define ARMS 3 /* of both workers */
#endif
#define ASKS 2
#define NOBODY 2
#define LISTED 3
#define CLOCK 4 /* armed, or its end not told yet */

mtype = { FREE, WORKED, PARKED, TAKING, SPLIT };

typedef entry { byte slot; byte at }
typedef ring { entry e[6]; byte tail, out, head } /* written, published, read */
typedef worker { bool free[SLOTS]; mtype mode }   /* FREE: nothing known; PARKED: it may be unparked */

/* Shared: the owner word is two, changed as one. */
mtype word = FREE;
byte owner = NOBODY;
byte holder[SLOTS] = NOBODY, place[SLOTS]; /* of split slabs */
bool armed[SLOTS];
ring rets[2];

/* The clock's. */
bool split, listed[SLOTS];

/* The workers'. */
worker own[2];
bool asks[2];
byte arms, asked;

/* For the checks: in whose hands a slot is. */
byte hands[SLOTS] = NOBODY;

#define MINE (owner == me && (word == WORKED || word == PARKED || word == TAKING))

/* slabs.h:wh_slabs_unpark */
inline unpark()
{
    usable = false;
    if
    :: own[me].mode == WORKED -> usable = true
    :: else ->
        atomic { seen = word; seen_owner = owner };
        do
        :: own[me].mode == SPLIT && seen == SPLIT -> usable = true; break
        :: seen_owner == me && (seen == PARKED || seen == TAKING || seen == WORKED) ->
            if
            :: MUTANT == 2 -> usable = true; break
            :: MUTANT == 1 ->
                atomic { word = WORKED; owner = me };
                own[me].mode = WORKED; usable = true; break
            :: MUTANT != 1 && MUTANT != 2 ->
                atomic {
                    if
                    :: word == seen && owner == seen_owner ->
                        word = WORKED; own[me].mode = WORKED; usable = true
                    :: else -> seen = word; seen_owner = owner
                    fi
                };
                if
                :: usable -> break
                :: else
                fi
            fi
        :: else ->
            own[me].free[0] = false; own[me].free[1] = false; own[me].mode = FREE;
            break
        od
    fi
}

/* slabs.h:wh_slabs_rest */
inline park()
{
    if
    :: own[me].mode == WORKED ->
        own[me].mode = PARKED;
        atomic {
            if
            :: word == WORKED && owner == me -> word = PARKED
            :: else
            fi
        }
    :: else
    fi
}

/* client.h:wh_client_arm, of a slot out of the magazine; the state word is what the clock looks at */
inline arm(s)
{
    own[me].free[s] = false;
    if
    :: MUTANT == 8 -> park()
    :: else
    fi;
    atomic { assert(hands[s] == me && !armed[s] && !listed[s]); armed[s] = true; hands[s] = CLOCK; arms++ };
    park()
}

/* receive.h:wh_client_reclaim */
inline reclaim()
{
    atomic { until = rets[me].out };
    do
    :: rets[me].head != until ->
        s = rets[me].e[rets[me].head].slot;
        atomic { seen = word; seen_owner = owner };
        if
        :: seen_owner == me && seen != SPLIT -> own[me].free[s] = true
        :: seen == SPLIT ->
            atomic {
                if
                :: holder[s] == me && (place[s] == rets[me].e[rets[me].head].at || MUTANT == 5) ->
                    if
                    :: own[me].mode != WORKED && own[me].mode != SPLIT ->
                        own[me].free[0] = false; own[me].free[1] = false; own[me].mode = SPLIT
                    :: else
                    fi;
                    own[me].free[s] = true
                :: else
                fi
            }
        :: else
        fi;
        atomic { rets[me].e[rets[me].head].slot = 0; rets[me].e[rets[me].head].at = 0; rets[me].head++ }
    :: else -> break
    od;
    atomic { seen = FREE; seen_owner = 0; s = 0; until = 0 }
}

proctype Worker(byte me)
{
    mtype seen;
    byte seen_owner, s, until;
    bool usable, claimed;
end:
    do
    :: arms < ARMS && (own[me].free[0] || own[me].free[1]) ->
        unpark();
        if
        :: usable && own[me].free[0] -> arm(0)
        :: usable && own[me].free[1] -> arm(1)
        :: else
        fi;
        atomic { seen = FREE; seen_owner = 0; usable = false }
    :: rets[me].head != rets[me].out -> reclaim()
    :: owner == NOBODY && word == FREE && arms < ARMS ->
        /* receive.h:wh_client_claim */
        atomic {
            claimed = word == FREE;
            if
            :: claimed ->
                word = WORKED; owner = me; own[me].mode = WORKED;
                assert(hands[0] == NOBODY && hands[1] == NOBODY);
                hands[0] = me; hands[1] = me;
                own[me].free[0] = true; own[me].free[1] = true
            :: else
            fi
        };
        if
        :: claimed && MUTANT != 6 -> reclaim()
        :: else
        fi;
        if
        :: claimed && arms < ARMS && own[me].free[0] -> arm(0)
        :: else -> park()
        fi;
        claimed = false
    :: asked < ASKS && !own[me].free[0] && !own[me].free[1] -> atomic { asked++; asks[me] = true }
    od
}

/* -- the clock ------------------------------------------------------------------------------------ */

/* deliver.h:wh_publish */
inline publish(w) { rets[w].out = rets[w].tail }

/* deliver.h:wh_put_returned */
inline put(w, s)
{
    if
    :: split && MUTANT != 7 -> atomic { holder[s] = w; place[s] = rets[w].tail }
    :: else
    fi;
    atomic {
        rets[w].e[rets[w].tail].slot = s;
        rets[w].e[rets[w].tail].at = rets[w].tail;
        rets[w].tail++;
        hands[s] = w
    };
    if
    :: split && MUTANT == 7 -> publish(w); atomic { holder[s] = w; place[s] = rets[w].tail - 1 }
    :: else
    fi
}

/* free_list.h:wh_free_list_put */
inline list_free(s)
{
    atomic { holder[s] = NOBODY; hands[s] = LISTED; listed[s] = true };
    if
    :: listed[0] && listed[1] -> /* free_list.h:wh_free_list_unsplit */
        atomic {
            listed[0] = false; listed[1] = false; split = false;
            hands[0] = NOBODY; hands[1] = NOBODY;
            owner = NOBODY; word = FREE
        }
    :: else
    fi
}

/* deliver.h:wh_return */
inline finish(s)
{
    armed[s] = false;
    if
    :: split -> list_free(s)
    :: !split -> assert(owner < NOBODY); put(owner, s)
    fi;
    if
    :: publish(0); publish(1)
    :: skip
    fi
}

/* grant.h:wh_take_over, of a slab that is another worker's */
inline take_over()
{
    atomic { seen_owner = owner; seen = word };
    if
    :: (seen == PARKED || seen == TAKING) && seen_owner == 1 - w ->
        done = false;
        if
        :: MUTANT != 3 ->
            atomic {
                if
                :: word == seen && owner == seen_owner -> word = TAKING; seen = TAKING; done = true
                :: else
                fi
            }
        :: else -> done = true
        fi;
        if
        :: done ->
            if
            :: MUTANT != 9 -> publish(seen_owner)
            :: else
            fi;
            idle[0] = !armed[0];
            idle[1] = !armed[1];
            holders();
            atomic {
                if
                :: (word == seen && owner == seen_owner) || MUTANT == 4 ->
                    word = SPLIT; owner = NOBODY; split = true; done = true
                :: else -> done = false
                fi
            };
            if
            :: done && idle[0] && split -> list_free(0)
            :: else
            fi;
            if
            :: done && idle[1] && split -> list_free(1)
            :: else
            fi
        :: else
        fi
    :: else
    fi
}

/* free_list.h:wh_free_list_hold */
inline holders()
{
    holder[0] = (idle[0] -> NOBODY : seen_owner); place[0] = 255;
    holder[1] = (idle[1] -> NOBODY : seen_owner); place[1] = 255
}

active proctype Clock()
{
    mtype seen;
    byte seen_owner, w;
    bool idle[SLOTS], done;
end:
    do
    :: armed[0] -> finish(0)
    :: armed[1] -> finish(1)
    :: rets[0].out != rets[0].tail -> publish(0)
    :: rets[1].out != rets[1].tail -> publish(1)
    :: asks[0] || asks[1] ->
        w = (asks[0] -> 0 : 1);
        take_over();
        /* grant.h:wh_hand_some */
        if
        :: listed[0] -> atomic { listed[0] = false; assert(holder[0] == NOBODY) }; put(w, 0)
        :: !listed[0] && listed[1] -> atomic { listed[1] = false; assert(holder[1] == NOBODY) }; put(w, 1)
        :: else
        fi;
        publish(w);
        atomic { asks[w] = false; w = 0; seen = FREE; seen_owner = 0; idle[0] = false; idle[1] = false; done = false }
    od
}

active proctype Check()
{
    byte s;
    run Worker(0);
    run Worker(1);
    timeout;
    do
    :: s < SLOTS ->
        assert(!armed[s]);
        if
        :: hands[s] < 2 -> assert(own[hands[s]].free[s]) /* it knows */
        :: hands[s] == LISTED -> assert(listed[s] && holder[s] == NOBODY)
        :: else -> assert(hands[s] == NOBODY && word == FREE)
        fi;
        s++
    :: else -> break
    od
}
