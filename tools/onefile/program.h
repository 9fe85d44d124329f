/* What the launcher and the start library share: the parts of the executable file, and how they are loaded.
 *
 * The file is the launcher, then parts, then a table of the parts that C reads, then a footer. Native libraries cannot
 * be loaded from the middle of a file. So a library is copied into a file in memory (memfd_create), which no folder
 * lists and which ends with the process. Where that is impossible (no /proc, or memory that must not be executed), it
 * is copied into a temporary file that is removed as soon as it is loaded.
 */
#ifndef KCOORD_PROGRAM_H
#define KCOORD_PROGRAM_H

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART_NAME_BYTES 104
#define FOOTER_MAGIC "kcoord1\n"

enum kind { PART_LIBRARY = 1, PART_PYTHON = 2, PART_START = 3, PART_FROZEN = 4, PART_FROZEN_PACKAGE = 5, PART_INDEX = 6 };

struct part {
    uint64_t offset;
    uint64_t size;
    uint64_t kind;
    char name[PART_NAME_BYTES];
};

struct footer {
    uint64_t table;
    uint64_t parts;
    uint64_t reserved;
    char magic[8];
};

struct program {
    const char *path;
    const char *bytes;
    const struct part *parts;
    uint64_t part_count;
    int use_files;
    unsigned loaded;
};

typedef int (*start_function)(struct program *, int, char **);

/* A file that a library can be loaded from. `path` has room for 4096 bytes. Returns a descriptor, or -1. */
static inline int open_part(struct program *program, const char *name, uint64_t offset, uint64_t size, char *path)
{
    int fd;
    const uint64_t start = offset;
    if (program->use_files) {
        const char *folder = getenv("TMPDIR");
        snprintf(path, 4096, "%.4000s/kcoord-XXXXXX", folder && *folder ? folder : "/tmp");
        fd = mkstemp(path);
    } else {
        fd = memfd_create(name, MFD_CLOEXEC);
        /* Loaded libraries are known by their paths, and the next one may get the same descriptor: as many slashes as
         * there were libraries make a path unique. */
        int length = snprintf(path, 4096, "/proc/self/fd");
        unsigned slashes = ++program->loaded;
        if (slashes > 3000)
            return -1;
        memset(path + length, '/', slashes);
        snprintf(path + length + slashes, 64, "%d", fd);
    }
    if (fd < 0)
        return -1;
    while (size > 0) {
        ssize_t written = write(fd, program->bytes + offset, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            if (program->use_files)
                unlink(path);
            close(fd);
            return -1;
        }
        offset += (uint64_t)written;
        size -= (uint64_t)written;
    }
    /* The pages of the original are not needed again, and would count as memory of the process. */
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = (start + page - 1) / page * page, end = offset / page * page;
    if (end > first)
        madvise((char *)program->bytes + first, end - first, MADV_DONTNEED);
    return fd;
}

/* After the library was loaded. */
static inline void close_part(struct program *program, int fd, const char *path)
{
    if (program->use_files)
        unlink(path);
    close(fd);
}

/* Load a library. Returns NULL after a failure, with the reason in dlerror() unless no file could be made. */
static inline void *load_part(struct program *program, const char *name, uint64_t offset, uint64_t size, int flags)
{
    char path[4096];
    int fd = open_part(program, name, offset, size, path);
    if (fd < 0)
        return NULL;
    void *library = dlopen(path, RTLD_NOW | flags);
    close_part(program, fd, path);
    return library;
}

#endif
