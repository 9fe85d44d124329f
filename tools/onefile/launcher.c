/* The beginning of the executable file: loads Python and the start library from the parts of the file (program.h).
 *
 * It needs only the C library, and works in the process that the user started: there is no second process that could
 * get the signals, and no folder to clean up.
 */
#define _GNU_SOURCE
#include "program.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>

#define EXIT_BROKEN 70

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "kcoord: %s: %s\n", what, why ? why : strerror(errno));
    return EXIT_BROKEN;
}

static const char *own_path(void)
{
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length > 0) {
        path[length] = '\0';
        return path;
    }
    const char *given = (const char *)getauxval(AT_EXECFN);
    return given && realpath(given, path) ? path : given;
}

static const struct part *find(const struct program *program, enum kind kind)
{
    for (uint64_t i = 0; i < program->part_count; i++)
        if (program->parts[i].kind == kind)
            return &program->parts[i];
    return NULL;
}

static int load_python(struct program *program)
{
    for (uint64_t i = 0; i < program->part_count; i++) {
        const struct part *part = &program->parts[i];
        if (part->kind != PART_LIBRARY && part->kind != PART_PYTHON)
            continue;
        /* Modules with native code look for Python's functions among what everyone sees. */
        int flags = part->kind == PART_PYTHON ? RTLD_GLOBAL : RTLD_LOCAL;
        if (!load_part(program, part->name, part->offset, part->size, flags))
            return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct program program;
    program.path = own_path();
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0 && program.path)
        fd = open(program.path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0)
        return fail("this program cannot read its own file", NULL);
    program.bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (program.bytes == MAP_FAILED)
        return fail("this program cannot read its own file", NULL);
    close(fd);
    struct footer footer;
    memcpy(&footer, program.bytes + status.st_size - sizeof footer, sizeof footer);
    if (memcmp(footer.magic, FOOTER_MAGIC, sizeof footer.magic) != 0
        || footer.table + footer.parts * sizeof(struct part) + sizeof footer != (uint64_t)status.st_size)
        return fail("this program's file", "it is not complete");
    program.parts = (const struct part *)(program.bytes + footer.table);
    program.part_count = footer.parts;
    if (load_python(&program) != 0) {
        program.use_files = 1;
        errno = 0;
        if (load_python(&program) != 0)
            return fail("Python cannot be loaded, neither from memory nor from $TMPDIR or /tmp", errno ? NULL : dlerror());
    }
    const struct part *start = find(&program, PART_START);
    void *library = start ? load_part(&program, start->name, start->offset, start->size, RTLD_LOCAL) : NULL;
    start_function function = library ? (start_function)dlsym(library, "start") : NULL;
    if (!function)
        return fail("Python cannot be started", dlerror());
    return function(&program, argc, argv);
}
