/* A libcuda.so.1 without a GPU, to see that ekc's calls arrive as the driver's interface wants them: device
   memory is host memory, a "kernel" adds its first two parameters' first floats into the third. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef unsigned long long P;
static void say(const char *what, P a, P b, P c) {
  printf("%s %llu %llu %llu\n", what, a, b, c);
  fflush(stdout);
}

R cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
  static void *self;
  Dl_info here;
  char longer[128];
  (void)version; (void)flags;
  if (!self) { dladdr((void *)cuGetProcAddress_v2, &here); self = dlopen(here.dli_fname, RTLD_LAZY); }
  *found = dlsym(self, name);
  if (!*found) { snprintf(longer, sizeof longer, "%s_v2", name); *found = dlsym(self, longer); }
  if (status) *status = *found ? 0 : 1;
  return 0;
}
R cuInit(unsigned flags) { return flags ? 1 : 0; }
R cuDriverGetVersion(int *v) { *v = 13000; return 0; }
R cuDeviceGetCount(int *n) { *n = 1; return 0; }
R cuDeviceGet(int *d, int i) { if (i) return 101; *d = 40; return 0; }
R cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "Stub %d", d); return 0; }
R cuDeviceGetUuid_v2(char *u, int d) { for (int i = 0; i < 16; i++) u[i] = (char)(i * 17); return d != 40; }
R cuDeviceTotalMem_v2(size_t *n, int d) { *n = 1ull << 33; return d != 40; }
R cuDeviceGetAttribute(int *v, int which, int d) { *v = 1000 + which; return d != 40; }
R cuDevicePrimaryCtxRetain(void **c, int d) { say("retain", d, 0, 0); *c = (void *)0x1000; return 0; }
R cuCtxPushCurrent_v2(void *c) { say("push", (P)c, 0, 0); return 0; }
R cuCtxPopCurrent_v2(void **c) { say("pop", 0, 0, 0); *c = (void *)0x1000; return 0; }
R cuCtxSynchronize(void) { say("synchronize", 0, 0, 0); return 0; }
R cuModuleLoadData(void **m, const char *image) {
  say("load", image[0], image[1], image[2]);
  *m = (void *)0x2000;
  return 0;
}
R cuModuleUnload(void *m) { say("unload", (P)m, 0, 0); return 0; }
R cuModuleGetFunction(void **f, void *m, const char *name) {
  if (strcmp(name, "add")) return 500;
  say("function", (P)m, 0, 0); *f = (void *)0x3000; return 0;
}
R cuFuncSetAttribute(void *f, int which, int value) { say("attribute", (P)f, which, value); return 0; }
R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                 unsigned shared, void *stream, void **params, void **extra) {
  say("launch", (P)f, shared, (P)stream);
  say("grid", gx, gy, gz);
  say("block", bx, by, bz);
  if (extra) return 1;
  *(float *)*(P *)params[2] = *(float *)*(P *)params[0] + *(float *)*(P *)params[1];
  return gx == 13 ? 700 : gx == 14 ? 4242 : 0;
}
R cuMemAlloc_v2(P *a, size_t n) { *a = (P)calloc(1, n); return 0; }
R cuMemFree_v2(P a) { free((void *)a); return 0; }
R cuMemAllocAsync(P *a, size_t n, void *s) { say("borrow", n, (P)s, 0); *a = (P)calloc(1, n); return 0; }
R cuMemFreeAsync(P a, void *s) { say("give back", (P)s, 0, 0); free((void *)a); return 0; }
R cuMemcpyHtoD_v2(P to, const void *from, size_t n) { say("upload", n, 0, 0); memcpy((void *)to, from, n); return 0; }
R cuMemcpyDtoH_v2(void *to, P from, size_t n) { memcpy(to, (void *)from, n); return 0; }
R cuMemsetD8Async(P a, unsigned char byte, size_t n, void *s) { (void)s; memset((void *)a, byte, n); return 0; }
R cuPointerGetAttribute(void *to, int which, P a) { *(int *)to = 3; return which != 9 || !a; }
R cuStreamCreate(void **s, unsigned flags) { say("stream", flags, 0, 0); *s = (void *)0x4000; return 0; }
R cuStreamSynchronize(void *s) { say("stream synchronize", (P)s, 0, 0); return 0; }
R cuStreamWaitEvent(void *s, void *e, unsigned flags) { say("wait event", (P)s, (P)e, flags); return 0; }
R cuEventCreate(void **e, unsigned flags) { say("event", flags, 0, 0); *e = (void *)0x5000; return 0; }
R cuEventRecord(void *e, void *s) { say("record", (P)e, (P)s, 0); return 0; }
R cuEventSynchronize(void *e) { say("wait", (P)e, 0, 0); return 0; }
R cuEventElapsedTime(float *ms, void *a, void *b) { (void)a; (void)b; *ms = 2.5f; return 0; }
R cuEventDestroy_v2(void *e) { say("destroy", (P)e, 0, 0); return 0; }
R cuStreamBeginCapture_v2(void *s, int mode) { say("capture", (P)s, mode, 0); return 0; }
R cuStreamEndCapture(void *s, void **g) { say("captured", (P)s, 0, 0); *g = (void *)0x6000; return 0; }
R cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long flags) {
  say("instantiate", (P)g, flags, 0);
  *e = (void *)0x7000;
  return 0;
}
R cuGraphDestroy(void *g) { say("template", (P)g, 0, 0); return 0; }
R cuGraphLaunch(void *e, void *s) { say("replay", (P)e, (P)s, 0); return 0; }
R cuGraphExecDestroy(void *e) { say("drop", (P)e, 0, 0); return 0; }
R cuGetErrorString(int e, const char **s) { *s = e == 700 ? "an illegal access" : "some error"; return 0; }
