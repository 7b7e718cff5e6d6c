/* Watch of the dying: what a worker leaves that dies at any instruction.
 *
 * Two slabs of one slot each. Survivor holds slab 1 and has armed its timer. Mortal claims slab 0, arms
 * and submits a timer there, and cancels Survivor's timer, in either order, and dies on the way or
 * after it. Survivor may claim slab 0 as well, use it and give it back. When the supervisor has seen the
 * death, the clock has swept and Mortal's row is free, Successor gets that row and must find slab 0. The
 * clock dies KILLS times, at any step, the supervisor once (and takes its clock with it); the registry,
 * the slots and the link records survive. Rings, publication and positions: completion_word.pml.
 *
 * Holds: no slab is leaked, no slot is in two hands, every timer of a living worker ends once and its
 * slot comes home, the row is not let anew while anything of the dead worker's is left.
 *
 * MUTANT 1: the supervisor frees the row when it has told the clock, not when the sweep is over
 * MUTANT 2: the sweep looks at the dead worker's slabs only
 * MUTANT 3: the sweep frees a slab before it has ended its slots
 * MUTANT 4: a new clock recovers before all workers are attached
 * MUTANT 5: a new supervisor takes dying rows for free ones
 * MUTANT 6: the sweep is not asked for again of a new clock
 * MUTANT 7: a new supervisor does not look whether its workers live
 * MUTANT 8: a slab is claimed by a load and a store
 * MUTANT 9: recovery hands a slot to its slab's owner because its record names another worker
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define KILLS 1

#define NOBODY 0   /* owner words: row and incarnation in one */
#define MORTAL 1   /* row 0 */
#define SURVIVOR 2 /* row 1 */
#define SUCCESSOR 3     /* row 0 */
#define ROW(who) (who == SURVIVOR -> 1 : 0)

mtype = { NEVER, ARMED, CANCELLED, FIRED }; /* phases */
mtype = { OPEN, OVER };                     /* stages */
mtype = { ACTIVE, DYING, FREE };            /* states of row 0 */

/* Outlives every process. */
byte owner[2];
byte gen[2], link_gen[2], link_worker[2];
mtype phase[2] = NEVER;
mtype stage[2] = OPEN;
mtype row = ACTIVE;
byte tenant = MORTAL;
chan ring0 = [3] of { byte, byte }; /* submissions of row 0, of row 1: slot, generation */
chan ring1 = [3] of { byte, byte };
chan home[4] = [2] of { byte }; /* slots given back to each worker */

/* Between supervisor and clock. */
bool clock_runs = true, clock_gone, detach_asked, reaped;
byte served[2]; /* incarnations attached */
byte kills;
bool supervisor_dies;

bool dead; /* Mortal's pidfd is readable */
byte holder[2]; /* for the checks: in whose hands a slot is */

/* -- workers -------------------------------------------------------------------------------------- */

/* slabs.h:wh_slabs_claim */
inline claim(me, won)
{
#if MUTANT == 8
    won = owner[0] == NOBODY;
    if
    :: won -> take_over(me)
    :: else
    fi
#else
    atomic {
        won = owner[0] == NOBODY;
        if
        :: won -> take_over(me)
        :: else
        fi
    }
#endif
}

inline take_over(me)
{
    atomic { assert(holder[0] == NOBODY); owner[0] = me; holder[0] = me }
}

/* client.h:wh_client_arm, then client.h:wh_client_publish */
inline arm(me, slot)
{
    atomic { assert(holder[slot] == me); holder[slot] = NOBODY; gen[slot]++; phase[slot] = ARMED }
}

/* receive.h:wh_client_reclaim, receive.h:wh_client_take */
inline come_home(me)
{
    atomic {
        home[me]?s;
        assert(holder[s] == NOBODY && owner[s] == me && phase[s] != ARMED);
        holder[s] = me
    }
}

#define MAY_DIE if :: goto gone :: skip fi

proctype Mortal()
{
    bool claimed, cancelled, won;
    do
    :: !claimed ->
        claimed = true;
        claim(MORTAL, won);
        MAY_DIE;
        if
        :: won ->
            arm(MORTAL, 0);
            MAY_DIE;
            ring0!0, 1;
            MAY_DIE
        :: else
        fi
    :: !cancelled ->
        cancelled = true;
        won = false;
        if /* client.h:wh_client_cancel */
        :: atomic { phase[1] == ARMED && gen[1] == 1 -> phase[1] = CANCELLED; won = true }
        :: else
        fi;
        MAY_DIE;
        if
        :: won -> ring0!1, 1
        :: else
        fi
    :: claimed && cancelled -> break
    od;
gone:
    atomic { dead = true; if :: holder[0] == MORTAL -> holder[0] = NOBODY :: else fi }
}

proctype Survivor()
{
    byte s;
    bool won;
    ring1!1, 1;
    if
    ::  claim(SURVIVOR, won);
        if
        :: won -> arm(SURVIVOR, 0); ring1!0, gen[0]; come_home(SURVIVOR)
        :: else
        fi
    :: skip
    fi;
    come_home(SURVIVOR);
    if /* slabs.h:wh_slabs_give: a slab that is wholly free may go back */
    :: atomic { holder[0] == SURVIVOR -> holder[0] = NOBODY; owner[0] = NOBODY }
    :: else
    fi
}

proctype Successor()
{
    byte s;
    bool won;
    row == ACTIVE && tenant == SUCCESSOR;
    do
    :: owner[0] == NOBODY -> claim(SUCCESSOR, won); if :: won -> break :: else fi
    od;
    arm(SUCCESSOR, 0);
    ring0!0, gen[0];
    come_home(SUCCESSOR);
end_alive:
    come_home(SUCCESSOR) /* nothing more may come */
}

/* -- the clock ------------------------------------------------------------------------------------ */

#define STEP \
    if \
    :: supervisor_dies -> goto died \
    :: !supervisor_dies && kills < KILLS -> kills++; goto died \
    :: !supervisor_dies \
    fi

/* clock.h:wh_peer_of */
#define SERVED(who) (who != NOBODY && served[ROW(who)] == who)

/* deliver.h:wh_return, deliver.h:wh_put_returned */
inline give_back(s)
{
    linked[s] = false;
    stage[s] = OVER;
    link_worker[s] = owner[s];
    if
    :: SERVED(owner[s]) && !(leaving && ROW(owner[s]) == 0) -> home[owner[s]]!s
    :: else
    fi
}

/* drain.h:wh_examine */
inline examine(s)
{
    if
    :: gen[s] != g || (link_gen[s] == g && stage[s] == OVER) || !SERVED(owner[s])
    :: else ->
        if
        :: link_gen[s] != g ->
            stage[s] = OPEN;
            link_gen[s] = g;
            linked[s] = phase[s] == ARMED
        :: else
        fi;
        if
        :: phase[s] == CANCELLED -> give_back(s)
        :: else
        fi
    fi
}

/* drain.h:wh_drain: a submission is met again if the clock dies before it publishes its head */
inline drain(ring)
{
    atomic {
        ring?<slot, g>;
        if
        :: slot == 0 -> examine(0)
        :: else -> examine(1)
        fi
    };
    atomic { STEP; ring?slot, g; slot = 0; g = 0 }
}

/* fire.h:wh_expire */
inline expire(s)
{
    atomic {
        if
        :: !SERVED(owner[s]) || (leaving && ROW(owner[s]) == 0) -> end_slot(s) /* fire.h:wh_drop */
        :: else ->
            if
            :: phase[s] == ARMED -> phase[s] = FIRED
            :: else
            fi;
            give_back(s)
        fi
    };
    STEP
}

/* reap.h:wh_reclaim */
inline end_slot(s)
{
    if
    :: phase[s] == ARMED -> phase[s] = CANCELLED
    :: else
    fi;
    linked[s] = false;
    stage[s] = OVER;
    link_worker[s] = NOBODY;
    link_gen[s] = gen[s]
}

/* reap.h:wh_reap, one slab: reap.h:wh_reclaim_slab or reap.h:wh_sweep_changed */
inline sweep(s)
{
#if MUTANT == 3
    mine = owner[s] == served[0];
    if
    :: mine -> owner[s] = NOBODY
    :: else
    fi;
#endif
    atomic {
        if
        :: MUTANT == 3 && mine -> end_slot(s)
        :: owner[s] == served[0] -> end_slot(s)
        :: owner[s] != served[0] && owner[s] != NOBODY && MUTANT != 2 && phase[s] == CANCELLED &&
            link_gen[s] == gen[s] && stage[s] == OPEN -> give_back(s)
        :: else
        fi
    };
    STEP;
    atomic {
        if
        :: owner[s] == served[0] -> owner[s] = NOBODY
        :: else
        fi
    };
    STEP
}

/* recover.h:wh_recover_slot, reap.h:wh_free_orphan */
inline recover(s)
{
    atomic {
        linked[s] = false;
        if
        :: owner[s] == NOBODY
        :: owner[s] != NOBODY && !SERVED(owner[s]) -> end_slot(s); STEP; owner[s] = NOBODY
        :: SERVED(owner[s]) ->
            if
            :: link_gen[s] != gen[s] && phase[s] != FIRED -> stage[s] = OPEN; link_gen[s] = gen[s]; STEP
            :: else
            fi;
            if
            :: phase[s] == ARMED -> linked[s] = true
            :: phase[s] == CANCELLED && stage[s] == OPEN -> give_back(s)
            :: MUTANT == 9 && phase[s] != ARMED && stage[s] == OVER &&
                link_worker[s] != owner[s] && link_worker[s] != NOBODY -> give_back(s)
            :: else
            fi
        fi
    };
    STEP
}

proctype Clock()
{
    bool linked[2], leaving, mine;
    byte slot, g;
    goto turn;
died:
    atomic { /* wheeld/clock/guard.py:ClockGuard._run */
        clock_runs = false;
        clock_gone = true;
        leaving = false;
        mine = false;
        slot = 0;
        g = 0;
        linked[0] = false;
        linked[1] = false
    };
    !clock_gone; /* wheeld/clock/process.py:ClockProcess._begin has attached what the supervisor named */
    recover(0);
    recover(1);
#if MUTANT == 4
    served[1] = SURVIVOR;
#endif
    clock_runs = true;
turn:
end_sleep:
    do
    :: nempty(ring0) && served[0] != NOBODY -> drain(ring0)
    :: nempty(ring1) -> drain(ring1)
    :: linked[0] && phase[0] == ARMED -> expire(0) /* what is cancelled is due too late to matter */
    :: linked[1] && phase[1] == ARMED -> expire(1)
    :: detach_asked -> /* wheeld/clock/process.py:ClockProcess._detach */
        atomic {
            detach_asked = false;
            if
            :: served[0] == NOBODY -> reaped = true
            :: else -> leaving = true
            fi
        }
    :: leaving && empty(ring0) ->
        sweep(0);
        sweep(1);
        atomic { leaving = false; served[0] = NOBODY }; /* reap.h:wh_reap_end */
        STEP;
        reaped = true /* wheeld/clock/process.py:ClockProcess._reaped */
    :: supervisor_dies -> goto died
    od
}

/* -- the supervisor ------------------------------------------------------------------------------- */

/* wheeld/supervisor/workers.py:Workers.attachments: those of all rows that are not free */
inline start_clock()
{
    atomic {
        clock_gone -> clock_gone = false;
        served[0] = (row == FREE -> NOBODY : tenant);
        served[1] = (MUTANT == 4 -> NOBODY : SURVIVOR);
        detach_asked = false;
        if
        :: MUTANT != 6 -> asked = false /* wheeld/clock/guard.py:ClockGuard.ask */
        :: else
        fi
    }
}

proctype Supervisor()
{
    bool asked, watched = true, died;
end_serving:
    do
    :: row == ACTIVE && tenant == MORTAL && dead && watched ->
        row = DYING /* wheeld/supervisor/workers.py:Workers._depart */
    :: row == DYING && clock_runs && !asked ->
        atomic {
            asked = true;
            detach_asked = true /* wheeld/clock/guard.py:ClockGuard.reap */
        };
#if MUTANT == 1
        row = FREE
#endif
    :: reaped ->
        atomic {
            reaped = false;
            row = FREE /* wheeld/supervisor/workers.py:Workers._forget */
        }
    :: row == FREE && clock_runs ->
        atomic { /* wheeld/tables/registry.py:Registry.allocate, wheeld/supervisor/workers.py:Workers._furnish */
            assert(owner[0] != MORTAL && empty(ring0));
            tenant = SUCCESSOR;
            served[0] = SUCCESSOR;
            row = ACTIVE
        }
    :: clock_gone && !reaped -> start_clock() /* wheeld/clock/guard.py:ClockGuard._run to its end */
    :: !died -> /* killed; the clock follows, and the next one waits for its lock */
        died = true;
        supervisor_dies = true;
        atomic {
            clock_gone -> supervisor_dies = false;
            asked = false;
            reaped = false;
            watched = MUTANT != 7; /* wheeld/supervisor/workers.py:Workers.watch_adopted */
            if
            :: MUTANT == 5 && row == DYING -> row = FREE
            :: else
            fi
        };
        start_clock()
    od
}

proctype Check()
{
    timeout;
    assert(tenant == SUCCESSOR && row == ACTIVE);
    assert(holder[0] == SUCCESSOR && holder[1] == SURVIVOR);
    assert(owner[0] == SUCCESSOR && owner[1] == SURVIVOR)
}

init
{
    atomic {
        owner[1] = SURVIVOR;
        gen[1] = 1;
        phase[1] = ARMED;
        served[0] = MORTAL;
        served[1] = SURVIVOR;
        run Mortal();
        run Survivor();
        run Successor();
        run Clock();
        run Supervisor();
        run Check()
    }
}
