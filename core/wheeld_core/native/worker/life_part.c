/* The worker object, and its life: which calls may begin.
 *
 *     UNBOUND   connect() has not bound it yet, or failed; a renewed one between two wheels
 *     OPEN      it is bound to a wheel, and calls may begin
 *     ENDED     it is bound, but the daemon does not take it back, or its wheel is over
 *     DETACHED  a forked child's: it has given up its parent's binding, and has none of its own
 *     CLOSING   close() was called, and threads still wait in poll()
 *     CLOSED    the end
 *
 *     UNBOUND, DETACHED -- _bind() --> OPEN -- _end(), _end_wheel() --> ENDED -- _bind() --> OPEN
 *     OPEN, ENDED in a forked child -- _bind() --> DETACHED, and on as above
 *     OPEN, ENDED -- close() --> CLOSING -- the last thread leaves poll() --> CLOSED
 *     any other -- close(), if nobody waits in poll() --> CLOSED
 *
 * A fork is seen by the page that the kernel wipes in the child: OPEN and ENDED read as FORKED
 * there (worker_life). A call begins by one look at that page, so it has the life while bound.
 */

enum life { FORKED = 0, UNBOUND, DETACHED, OPEN, ENDED, CLOSING, CLOSED };

/* Flags that other threads and events set; each may be true with any other. */
typedef struct {
    bool lost;    /* the control socket has hung up: poll() has _reconnect() called */
    bool removed; /* its FIFO was removed, as a check saw: _come_back() is called */
    bool woken;   /* _wake() was called: whoever dispatches returns */
    bool unread;  /* awake, and what was rung is in the FIFO still */
} Heard;

typedef struct {
    PyObject_HEAD wh_client client;
    Mapping wheel, slots, registry, worker;
    Mapping keys_map;
    wh_keys keys;
    PyObject *keys_read[2]; /* id -> encoded key of events received: the latest, and those before */
    struct {
        PyObject *name;
        uint64_t incarnation;
        uint32_t row;
    } known; /* the worker whose timer was read last */
    wh_row *rows; /* the worker table */
    wh_group *groups;
    uint32_t row_count;
    enum life life;
    char *page; /* its life while bound, in memory that is zero in a forked child */
    PyObject *dtype, *empty_events, *numpy_empty;
    PyObject *sieve; /* what the client's policies do with events; NULL: there are none */
    wh_fd bell, clock_bell; /* our FIFO and the clock's: descriptors of our own */
    wh_fd daemon; /* the control socket, for its hang-up and alarms; our own too */
    int sleepers; /* threads that wait in poll(); the last one to leave cleans up a closed client */
    /* those that let others in meanwhile, and come back to what is bound now */
    int inside;
    uint64_t connections; /* control sockets so far */
    Heard heard;
    bool notify_always; /* fileno() was asked for: stay ready to be rung between polls */
    bool refork; /* connect(after_fork=): in a forked child, have _refork() bind it anew */
    bool renews; /* connect(on_reconnect=): have _renew() bind it to the next daemon */
    /* it was without a daemon for too long: the clock's epoch plus 1; or 0 */
    unsigned long long given_up;
    uint32_t forks; /* how often it was bound again in a forked child */
    struct Watching *watching; /* once it has a purgatory; else NULL */
    PyObject *ended; /* why the daemon does not take it back, a str; or NULL */
    /* what the events of a poll have beside them: by its name a dict by id; NULL: nothing */
    PyObject *beside;
    bool polls_held; /* the last poll was one with hold */
    wh_claim *claims; /* made by _claim(): the client reads them there, this and each next one */
    uint32_t claim_count;
    struct {
        PyObject *id, *payload;
    } arriving; /* the payload that is being copied */
    PyObject *handles; /* a Waiting, of the callbacks that wait for their timers; or NULL */
} WorkerObject;

static char no_page = UNBOUND; /* its life while not bound: neither open nor forked */

/* A worker whose memory may be touched: it is bound, here or in the parent. */
static inline bool worker_is_bound(const WorkerObject *w)
{
    return w->life >= OPEN && w->life <= CLOSING;
}

static inline bool worker_is_closed(const WorkerObject *w) { return w->life >= CLOSING; }

/* As of this process. A worker that was closed before a fork is closed in the child, too. */
static inline enum life worker_life(const WorkerObject *w)
{
    return !worker_is_closed(w) && *w->page == FORKED ? FORKED : w->life;
}

static inline bool worker_is_forked(const WorkerObject *w)
{
    return w->life == DETACHED || worker_life(w) == FORKED;
}

static inline void worker_become(WorkerObject *w, enum life life)
{
    w->life = life;
    if (w->page != &no_page)
        *w->page = (char)life;
}

/* -- the page ---------------------------------------------------------------------------------- */

/* A page that the kernel gives to a forked child zeroed, whichever way it was forked. NULL: errno.
 */
static char *life_page(void)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    char *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    if (madvise(page, bytes, MADV_WIPEONFORK) < 0) {
        munmap(page, bytes);
        return NULL;
    }
    *page = UNBOUND;
    return page;
}

/* No call begins from here on. */
static void worker_drop_page(WorkerObject *w)
{
    char *page = w->page;
    w->page = &no_page;
    if (page != &no_page)
        munmap(page, (size_t)sysconf(_SC_PAGESIZE));
}
