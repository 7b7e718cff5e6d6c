/* Locks: what stands in for the GIL on a free-threaded Python.
 *
 * With a GIL whoever holds that runs alone, until it waits, or calls what may run code of a user.
 * On a free-threaded Python each call of a type's table runs in a critical section of Python's own,
 * which has just that meaning: it is left while the thread waits, and entered again before it goes
 * on. So all that this module says of "letting the GIL go" holds there, too.
 *
 * Invariants
 *  1. A worker's own lock guards its wh_client, and its part of the pools. Two workers of a process
 *     do not hold each other up.
 *  2. The gate is one for the process. It guards what lies across workers and purgatories: all of
 *     `watching`, operations, queues of pools, registered segments. Code that needs both takes both
 * at once.
 *  3. Between steps that must be one no call is made that may wait: not for a lock of Python's
 *     either, such as that of a dict (callback_part.c).
 */

#ifdef Py_GIL_DISABLED

static PyObject *gate; /* any object will do: only its lock matters */

static bool gate_made(void)
{
    return gate || (gate = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type)) != NULL;
}

typedef struct {
    PyCriticalSection2 sections;
    PyObject *first; /* strong */
} Held;

/* The locks of `object` and the gate, or the gate alone (NULL). */
static void lock_with_gate(Held *held, PyObject *object)
{
    held->first = Py_NewRef(object ? object : gate);
    PyCriticalSection2_Begin(&held->sections, held->first, gate);
}

/* The lock of `object`; the gate, if there is none. */
static void lock_alone(Held *held, PyObject *object)
{
    held->first = Py_NewRef(object ? object : gate);
    PyCriticalSection2_Begin(&held->sections, held->first, held->first);
}

static void lock_end(Held *held)
{
    PyCriticalSection2_End(&held->sections);
    Py_DECREF(held->first);
}

/* NAME in a table: the function that runs NAME under its locks, made by one of those below. `lock`:
 * a function that takes them, for an object of type `Self`. */
#define LOCKED(name) name##_locked

#define LOCKED_BODY(lock, call)                                                                    \
    Held held;                                                                                     \
    lock(&held, self);                                                                             \
    __auto_type result = call;                                                                     \
    lock_end(&held);                                                                               \
    return result
#define LOCKED_KEYWORDS(lock, Self, name)                                                          \
    static PyObject *name(Self *, PyObject *const *, Py_ssize_t, PyObject *);                      \
    static PyObject *name##_locked(Self *self, PyObject *const *args, Py_ssize_t n, PyObject *kw)  \
    {                                                                                              \
        LOCKED_BODY(lock, name(self, args, n, kw));                                                \
    }
#define LOCKED_FAST(lock, Self, name)                                                              \
    static PyObject *name(Self *, PyObject *const *, Py_ssize_t);                                  \
    static PyObject *name##_locked(Self *self, PyObject *const *args, Py_ssize_t n)                \
    {                                                                                              \
        LOCKED_BODY(lock, name(self, args, n));                                                    \
    }
#define LOCKED_ONE(lock, Self, name)                                                               \
    static PyObject *name(Self *, PyObject *);                                                     \
    static PyObject *name##_locked(Self *self, PyObject *args)                                     \
    {                                                                                              \
        LOCKED_BODY(lock, name(self, args));                                                       \
    }
#define LOCKED_GET(lock, Self, name)                                                               \
    static PyObject *name(Self *, void *);                                                         \
    static PyObject *name##_locked(Self *self, void *which)                                        \
    {                                                                                              \
        LOCKED_BODY(lock, name(self, which));                                                      \
    }
#define LOCKED_INIT(lock, Self, name)                                                              \
    static int name(Self *, PyObject *, PyObject *);                                               \
    static int name##_locked(Self *self, PyObject *args, PyObject *kwargs)                         \
    {                                                                                              \
        LOCKED_BODY(lock, name(self, args, kwargs));                                               \
    }

#else

typedef struct {
    char none;
} Held;
static inline bool gate_made(void) { return true; }
static inline void lock_with_gate(Held *held, PyObject *object) { (void)held, (void)object; }
static inline void lock_alone(Held *held, PyObject *object) { (void)held, (void)object; }
static inline void lock_end(Held *held) { (void)held; }
#define LOCKED(name) name
#define LOCKED_KEYWORDS(lock, Self, name)
#define LOCKED_FAST(lock, Self, name)
#define LOCKED_ONE(lock, Self, name)
#define LOCKED_GET(lock, Self, name)
#define LOCKED_INIT(lock, Self, name)

#endif
