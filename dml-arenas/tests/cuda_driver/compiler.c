/* The part of NVRTC that DML uses. Its output is text, like PTX: the source itself, behind a line that says
 * how it was compiled. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };
struct program { char *source, *code; const char *log; int is_machine_code; };

static long compiled, there;

/* What a test asks. */
long stand_in_compiled(void) { return compiled; }
long stand_in_programs(void) { return there; }

int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 1; return SUCCESS; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 3; return SUCCESS; }

/* In no order. It knows the first device, and one that is older than the second. */
int nvrtcGetSupportedArchs(int *known) { memcpy(known, (int[]){90, 120, 75}, 3 * sizeof *known); return SUCCESS; }

const char *nvrtcGetErrorString(int code) { return code == OUT_OF_MEMORY ? "out of memory" : "another error"; }

int nvrtcCreateProgram(struct program **made, const char *source, const char *name, int headers, const char *const *texts,
                       const char *const *names) {
    if (strcmp(name, "kernel.cu") || headers || texts || names) return INVALID_PROGRAM;
    if (strstr(source, "no memory")) return OUT_OF_MEMORY;
    *made = calloc(1, sizeof **made);
    (*made)->source = strdup(source);
    there++;
    return SUCCESS;
}

int nvrtcDestroyProgram(struct program **program) {
    free((*program)->source);
    free((*program)->code);
    free(*program);
    *program = NULL;
    there--;
    return SUCCESS;
}

int nvrtcCompileProgram(struct program *program, int count, const char *const *options) {
    compiled++;
    if (strstr(program->source, "wrong")) { program->log = "kernel.cu(2): error: wrong\n"; return COMPILATION; }
    if (strstr(program->source, "wordless")) { program->log = ""; return COMPILATION; }
    if (strstr(program->source, "too large")) { program->log = ""; return OUT_OF_MEMORY; }
    size_t room = strlen(program->source) + 1024, end = 0;
    program->code = calloc(1, room);
    end += snprintf(program->code, room, "// made by");
    for (int index = 0; index < count; index++) {
        if (!strcmp(options[index], "--unknown")) { program->log = "unknown option"; return INVALID_OPTION; }
        program->is_machine_code |= !!strstr(options[index], "=sm_");
        end += snprintf(program->code + end, room - end, " %s", options[index]);
    }
    snprintf(program->code + end, room - end, "\n%s", program->source);
    return SUCCESS;
}

/* Asked for the other form, it has nothing. */
int nvrtcGetCUBINSize(struct program *program, size_t *size) { *size = program->is_machine_code ? strlen(program->code) + 1 : 0; return SUCCESS; }
int nvrtcGetCUBIN(struct program *program, char *code) { strcpy(code, program->code); return SUCCESS; }
int nvrtcGetPTXSize(struct program *program, size_t *size) { *size = program->is_machine_code ? 0 : strlen(program->code) + 1; return SUCCESS; }
int nvrtcGetPTX(struct program *program, char *code) { strcpy(code, program->code); return SUCCESS; }
int nvrtcGetProgramLogSize(struct program *program, size_t *size) { *size = strlen(program->log) + 1; return SUCCESS; }
int nvrtcGetProgramLog(struct program *program, char *log) { strcpy(log, program->log); return SUCCESS; }
