/* The start library of the executable file: runs Python with the modules in the file.
 *
 * Compiled against the headers of the Python in the file, whose functions the launcher has loaded. The few modules that
 * Python needs before its importer is complete are frozen ones; begin.py, the last of them, imports all others.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include "program.h"

static struct program *program;

static PyObject *data(PyObject *self, PyObject *args)
{
    unsigned long long offset, size;
    if (!PyArg_ParseTuple(args, "KK", &offset, &size))
        return NULL;
    return PyMemoryView_FromMemory((char *)program->bytes + offset, (Py_ssize_t)size, PyBUF_READ);
}

static PyObject *index_part(PyObject *self, PyObject *unused)
{
    for (uint64_t i = 0; i < program->part_count; i++)
        if (program->parts[i].kind == PART_INDEX)
            return PyMemoryView_FromMemory((char *)program->bytes + program->parts[i].offset,
                                           (Py_ssize_t)program->parts[i].size, PyBUF_READ);
    PyErr_SetString(PyExc_ImportError, "the file has no index");
    return NULL;
}

static PyObject *load_library(PyObject *self, PyObject *args)
{
    const char *name;
    unsigned long long offset, size;
    if (!PyArg_ParseTuple(args, "sKK", &name, &offset, &size))
        return NULL;
    if (!load_part(program, name, offset, size, RTLD_LOCAL)) {
        const char *why = dlerror();
        return PyErr_Format(PyExc_ImportError, "%s: %s", name, why ? why : strerror(errno));
    }
    Py_RETURN_NONE;
}

static PyObject *open_module(PyObject *self, PyObject *args)
{
    const char *name;
    unsigned long long offset, size;
    char path[4096];
    if (!PyArg_ParseTuple(args, "sKK", &name, &offset, &size))
        return NULL;
    int fd = open_part(program, name, offset, size, path);
    if (fd < 0)
        return PyErr_Format(PyExc_ImportError, "%s: %s", name, strerror(errno));
    return Py_BuildValue("is", fd, path);
}

static PyObject *close_module(PyObject *self, PyObject *args)
{
    int fd;
    const char *path;
    if (!PyArg_ParseTuple(args, "is", &fd, &path))
        return NULL;
    close_part(program, fd, path);
    Py_RETURN_NONE;
}

/* What the small library of a module does that mypyc has compiled together with others: calls the function in a
 * capsule, which makes the module. */
static PyObject *call_capsule(PyObject *self, PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    void *function = PyErr_Occurred() ? NULL : PyCapsule_GetPointer(capsule, name);
    return function ? ((PyObject * (*)(void)) function)() : NULL;
}

static PyMethodDef functions[] = {
    {"data", data, METH_VARARGS, "data(offset, size): bytes of the file."},
    {"index", index_part, METH_NOARGS, "index(): the marshalled list of what is in the file."},
    {"load_library", load_library, METH_VARARGS, "load_library(name, offset, size): for modules that need it."},
    {"open_module", open_module, METH_VARARGS, "open_module(name, offset, size): (descriptor, path)."},
    {"close_module", close_module, METH_VARARGS, "close_module(descriptor, path): after it was loaded."},
    {"call_capsule", call_capsule, METH_O, "call_capsule(capsule): the module that its function makes."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_onefile", NULL, -1, functions, NULL, NULL, NULL, NULL};

static PyObject *init_module(void)
{
    return PyModule_Create(&definition);
}

static int freeze(void)
{
    struct _frozen *modules = calloc(program->part_count + 1, sizeof *modules);
    if (!modules)
        return -1;
    struct _frozen *module = modules;
    for (uint64_t i = 0; i < program->part_count; i++) {
        const struct part *part = &program->parts[i];
        if (part->kind != PART_FROZEN && part->kind != PART_FROZEN_PACKAGE)
            continue;
        module->name = part->name;
        module->code = (const unsigned char *)program->bytes + part->offset;
        module->size = (int)part->size;
        module->is_package = part->kind == PART_FROZEN_PACKAGE;
        module++;
    }
    PyImport_FrozenModules = modules;
    return 0;
}

static PyStatus initialize(int argc, char **argv)
{
    PyPreConfig before;
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    PyStatus status = Py_PreInitialize(&before);
    if (PyStatus_Exception(status))
        return status;
    PyConfig config;
    PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0;
    config.write_bytecode = 0;
    config.parse_argv = 0;
    config.install_signal_handlers = 1;
    config.use_frozen_modules = 1;
    config.module_search_paths_set = 1;
    wchar_t **paths[] = {&config.program_name, &config.executable, &config.base_executable, &config.home,
                         &config.prefix, &config.base_prefix, &config.exec_prefix, &config.base_exec_prefix};
    for (size_t i = 0; !PyStatus_Exception(status) && i < sizeof paths / sizeof *paths; i++)
        status = PyConfig_SetBytesString(&config, paths[i], program->path);
    if (!PyStatus_Exception(status))
        status = PyConfig_SetBytesArgv(&config, argc, argv);
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    return status;
}

int start(struct program *given, int argc, char **argv)
{
    program = given;
    if (freeze() != 0 || PyImport_AppendInittab("_onefile", init_module) != 0) {
        fputs("kcoord: not enough memory\n", stderr);
        return 70;
    }
    PyStatus status = initialize(argc, argv);
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
    PyObject *begin = PyImport_ImportModule("_onefile_begin");
    PyObject *result = begin ? PyObject_CallMethod(begin, "main", NULL) : NULL;
    int code = 0;
    if (!result) {
        /* After SystemExit this ends the process with its code. */
        PyErr_Print();
        code = 1;
    }
    Py_XDECREF(result);
    Py_XDECREF(begin);
    return Py_FinalizeEx() < 0 ? 120 : code;
}
