/* A daemon's files: found, and opened only if they are of a user who may be believed.
 *
 * Others can put files into /tmp and /dev/shm. So the runtime directory must be this user's or
 * root's, or stand in /run/wheeld, which is root's; nobody else may write it or the one above; and
 * what is opened there, or mapped, must be its owner's.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wheeld/shared/geometry.h"
#include "wheeld/shared/backing.h"

#define SYSTEM_BASE "/run/wheeld"
#define LOOK (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define FIFO (O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW)

static bool is_believed(uid_t uid) { return uid == geteuid() || uid == 0; }

static int refuse(const char *path, const struct stat *s)
{
    return fail(WHEELD_NOT_PERMITTED,
                "%s (uid %u, mode %04o) could have been made by another user; refusing to use it",
                path, s->st_uid, s->st_mode & 07777u);
}

/* Is the directory `own`, in `above`, a daemon's? */
static int check(const char *path, const struct stat *above, const struct stat *own)
{
    bool system = strncmp(path, SYSTEM_BASE "/", sizeof SYSTEM_BASE) == 0 && above->st_uid == 0;
    if (!is_believed(above->st_uid) || (above->st_mode & S_IWOTH && !(above->st_mode & S_ISVTX)) ||
        own->st_mode & (S_IWGRP | S_IWOTH) || !(is_believed(own->st_uid) || system))
        return refuse(path, own);
    return WHEELD_OK;
}

/* Open `base`/`leaf`. WHEELD_NOT_RUNNING: there is no daemon. */
static int enter(place *p, const char *base, const char *leaf)
{
    struct stat above, own = {0}, socket;
    char real[PATH_MAX];
    if (realpath(base, real) == NULL ||
        snprintf(p->path, sizeof p->path, "%s/%s", real, leaf) >= (int)sizeof p->path ||
        stat(real, &above) < 0 || (p->fd = open(p->path, LOOK)) < 0)
        return WHEELD_NOT_RUNNING;
    int result = WHEELD_NOT_RUNNING;
    if (fstat(p->fd, &own) == 0 && fstatat(p->fd, "control.sock", &socket, 0) == 0)
        result = check(p->path, &above, &own);
    else if (errno == EACCES)
        result = fail_errno(WHEELD_NOT_PERMITTED, "%s is not open to uid %u", p->path, geteuid());
    p->owner = own.st_uid;
    if (result != WHEELD_OK) {
        close(p->fd);
        p->fd = -1;
    }
    return result;
}

static int enter_path(place *p, const char *path)
{
    char base[PATH_MAX];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length >= sizeof base)
        return fail(WHEELD_INVALID, "the daemon's path has %zu bytes", length);
    memcpy(base, path, length);
    base[length] = '\0';
    char *slash = strrchr(base, '/');
    *slash = '\0';
    return enter(p, *base ? base : "/", slash + 1);
}

int place_find(place *p, const char *name, const char *runtime_dir)
{
    char session[PATH_MAX] = "", own[64];
    const char *given = runtime_dir ? runtime_dir : getenv("WHEELD_RUNTIME_DIR");
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    int result = WHEELD_NOT_RUNNING;
    p->fd = -1;
    if (name == NULL || *name == '\0' || *name == '.')
        return fail(WHEELD_INVALID, "daemon name \"%s\": expected a name, or a path with a slash",
                    name ? name : "(null)");
    if (xdg && *xdg)
        snprintf(session, sizeof session, "%s/wheeld", xdg);
    snprintf(own, sizeof own, "/tmp/wheeld-%u", getuid());
    const char *usual[] = {SYSTEM_BASE, session, own}, **bases = given && *given ? &given : usual;
    if (strchr(name, '/'))
        result = enter_path(p, name);
    else
        for (int i = 0; result == WHEELD_NOT_RUNNING && i < (bases == usual ? 3 : 1); i++)
            if (*bases[i])
                result = enter(p, bases[i], name);
    if (result == WHEELD_NOT_RUNNING)
        fail(result,
             "no wheeld daemon \"%s\" is running (looked in %s); start it with `wheeld start`",
             name,
             strchr(name, '/') ? "that directory"
             : bases == usual  ? "the usual places"
                               : given);
    return result;
}

bool place_has_fifo(const place *p, int fd)
{
    struct stat s;
    return fstat(fd, &s) == 0 && S_ISFIFO(s.st_mode) && s.st_uid == p->owner;
}

int above_standard(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    close(fd);
    return above;
}

int place_open_fifo(const place *p, const char *name, int *fd)
{
    *fd = strchr(name, '/') ? -1 : openat(p->fd, name, O_RDWR | FIFO);
    if (*fd < 0 && errno == EACCES) /* another user's: to ring only */
        *fd = openat(p->fd, name, O_WRONLY | FIFO);
    if (*fd < 0)
        return fail_errno(WHEELD_SYSTEM, "cannot open %s/%s", p->path, name);
    *fd = above_standard(*fd);
    if (place_has_fifo(p, *fd))
        return WHEELD_OK;
    close(*fd);
    *fd = -1;
    return fail(WHEELD_NOT_PERMITTED, "%s/%s is no FIFO of uid %u; refusing to use it", p->path,
                name, p->owner);
}

static int check_segment(const mapping *m, const char *name, int kind)
{
    const wh_head *head = m->at;
    switch (wh_head_attach(m->at, m->bytes, (enum wh_kind)kind)) {
    case WH_ATTACH_READY:
        return WHEELD_OK;
    case WH_ATTACH_VERSION:
    case WH_ATTACH_FINGERPRINT:
        return fail(WHEELD_MISMATCH,
                    "%s has layout version %u (%016llx), this client is built for version %d "
                    "(%016llx): install the same wheeld on both sides",
                    name, head->layout_version, (unsigned long long)head->fingerprint,
                    WH_LAYOUT_VERSION, (unsigned long long)wh_fingerprint());
    default:
        return fail(WHEELD_MISMATCH, "/dev/shm/%s is not a segment of wheeld as expected", name);
    }
}

int place_map(const place *p, const char *name, int kind, bool writable, mapping *m)
{
    char path[PATH_MAX];
    struct stat s = {0};
    snprintf(path, sizeof path, "/dev/shm/%s", name);
    int flags = (writable ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = strchr(name, '/') || *name == '\0' ? (errno = EINVAL, -1) : open(path, flags);
    if (fd < 0)
        return fail_errno(errno == EACCES ? WHEELD_NOT_PERMITTED : WHEELD_NOT_RUNNING,
                          "cannot open %s (do both sides have the same /dev/shm?)", path);
    if (fstat(fd, &s) < 0 || !S_ISREG(s.st_mode) || s.st_uid != p->owner || s.st_mode & S_IRWXO) {
        close(fd);
        return refuse(path, &s);
    }
    m->bytes = (uint64_t)s.st_size;
    m->at = wh_map_file(fd, m->bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED);
    close(fd);
    if (m->at == MAP_FAILED) {
        m->at = NULL;
        return fail_errno(WHEELD_SYSTEM, "cannot map %s", path);
    }
    return check_segment(m, name, kind);
}

void mapping_drop(mapping *m)
{
    if (m->at)
        munmap(m->at, m->bytes);
    m->at = NULL;
}
