/* cuBLASLt (-DCUBLASLT) or cuDNN without a GPU, to see that ekc's calls arrive as these libraries want them:
   device memory is host memory, calls compute at once, and their time is added to `scripted_seconds`. Values of
   another size, type or order than in cublasLt.h and cudnn_cnn.h are refused. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
double scripted_seconds = 0.0, scripted_call_s = 20e-6;
int scripted_wrong = 0, scripted_refused = 0, scripted_count = 4;
static const double slowness[] = {1.2, 1.0, 1.02, 1.5};

static float read_element(const void *place, int kind, size_t i) {
  if (kind == 0) return ((const float *)place)[i];
  if (kind == 2) return (float)((const _Float16 *)place)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)place)[i] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static void write_element(void *place, int kind, size_t i, double value) {
  float single = (float)value;
  uint32_t bits;
  memcpy(&bits, &single, 4);
  if (kind == 0) ((float *)place)[i] = single;
  else if (kind == 2) ((_Float16 *)place)[i] = (_Float16)single;
  else ((uint16_t *)place)[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static float truncate_tf32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits &= ~0x1fffu;
  memcpy(&value, &bits, 4);
  return value;
}
static R spend(int algorithm) {
  if (scripted_refused >> algorithm & 1) return 13;
  scripted_seconds += scripted_call_s * slowness[algorithm];
  return 0;
}

#ifdef CUBLASLT
typedef struct { int compute, transposed[2]; } Product;
typedef struct { int kind; uint64_t rows, columns; int64_t leading, stride; int batch; } Layout;
typedef struct { uint64_t workspace; uint32_t schemes; } Preference;
typedef struct { uint64_t data[8]; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;

size_t cublasLtGetVersion(void) { return VERSION; }
const char *cublasLtGetStatusString(R status) { return status == 13 ? "CUBLAS_STATUS_EXECUTION_FAILED" : "other"; }
R cublasLtCreate(void **handle) { *handle = (void *)0x10; return 0; }
R cublasLtMatmulDescCreate(void **made, int compute, int scale) {
  if ((compute != 68 && compute != 77) || scale != 0) return 15;
  *made = calloc(1, sizeof(Product));
  ((Product *)*made)->compute = compute;
  return 0;
}
R cublasLtMatmulDescSetAttribute(Product *product, int which, const int32_t *value, size_t size) {
  if (size != 4 || (which != 3 && which != 4) || *value < 0 || *value > 1) return 7;
  product->transposed[which - 3] = *value;
  return 0;
}
R cublasLtMatrixLayoutCreate(void **made, int kind, uint64_t rows, uint64_t columns, int64_t leading) {
  if ((kind != 0 && kind != 2 && kind != 14) || leading < (int64_t)rows) return 7;
  Layout layout = {kind, rows, columns, leading, 0, 1};
  memcpy(*made = malloc(sizeof layout), &layout, sizeof layout);
  return 0;
}
R cublasLtMatrixLayoutSetAttribute(Layout *layout, int which, const void *value, size_t size) {
  if (which == 5 && size == 4) layout->batch = *(const int32_t *)value;
  else if (which == 6 && size == 8) layout->stride = *(const int64_t *)value;
  else return 7;
  return 0;
}
R cublasLtMatmulPreferenceCreate(void **made) { *made = calloc(1, sizeof(Preference)); return 0; }
R cublasLtMatmulPreferenceDestroy(void *made) { free(made); return 0; }
R cublasLtMatmulPreferenceSetAttribute(Preference *p, int which, const void *value, size_t size) {
  if (which == 1 && size == 8) p->workspace = *(const uint64_t *)value;
  else if (which == 3 && size == 4) p->schemes = *(const uint32_t *)value;
  else return 7;
  return 0;
}
static R check_shapes(const Product *p, const Layout *a, const Layout *b, const Layout *d) {
  uint64_t m = p->transposed[0] ? a->columns : a->rows, k = p->transposed[0] ? a->rows : a->columns;
  uint64_t n = p->transposed[1] ? b->rows : b->columns, inner = p->transposed[1] ? b->columns : b->rows;
  int one_type = a->kind == b->kind && a->batch == b->batch && a->batch == d->batch;
  return m != d->rows || n != d->columns || k != inner || !one_type ? 7 : 0;
}
R cublasLtMatmulAlgoGetHeuristic(void *handle, Product *p, Layout *a, Layout *b, Layout *c, Layout *d, Preference *q,
                                 int asked, Heuristic *found, int *number) {
  if (handle != (void *)0x10 || check_shapes(p, a, b, d) || c != d || q->schemes != 3 || !q->workspace) return 7;
  *number = asked < scripted_count ? asked : scripted_count;
  if (!*number) return 15;
  memset(found, 0, (size_t)*number * sizeof *found);
  for (int i = 0; i < *number; i++) {
    found[i].data[0] = (uint64_t)i;
    found[i].data[7] = 0xfeedu;
    found[i].workspace = (size_t)i * 1024;
    found[i].state = i == 3 ? 15 : 0;
  }
  return 0;
}
R cublasLtMatmul(void *handle, Product *p, const float *alpha, const void *A, Layout *a, const void *B, Layout *b,
                 const float *beta, const void *C, Layout *c, void *D, Layout *d, const uint64_t *algorithm,
                 void *workspace, size_t size, void *stream) {
  int number = (int)algorithm[0];
  if (handle != (void *)0x10 || check_shapes(p, a, b, d) || C != D || c != d || *alpha != 1 || *beta != 0) return 7;
  if (algorithm[7] != 0xfeedu || size < (size_t)number * 1024 || (size && !workspace) || !stream) return 7;
  R refused = spend(number);
  if (refused) return refused;
  uint64_t depth = p->transposed[0] ? a->rows : a->columns;
  for (int batch = 0; batch < d->batch; batch++)
    for (uint64_t i = 0; i < d->rows; i++)
      for (uint64_t j = 0; j < d->columns; j++) {
        double sum = scripted_wrong >> number & 1;
        for (uint64_t k = 0; k < depth; k++) {
          uint64_t at = p->transposed[0] ? k + i * (uint64_t)a->leading : i + k * (uint64_t)a->leading;
          uint64_t bt = p->transposed[1] ? j + k * (uint64_t)b->leading : k + j * (uint64_t)b->leading;
          float x = read_element(A, a->kind, (size_t)batch * (size_t)a->stride + at);
          float y = read_element(B, b->kind, (size_t)batch * (size_t)b->stride + bt);
          sum += p->compute == 77 ? (double)truncate_tf32(x) * truncate_tf32(y) : (double)x * y;
        }
        write_element(D, d->kind, (size_t)batch * (size_t)d->stride + i + j * (uint64_t)d->leading, sum);
      }
  return 0;
}
#else
typedef struct { int order, kind, size[4]; } Tensor;
typedef struct { int pad[2], stride[2], dilation[2], groups, math; } Window;
typedef struct { int algorithm, status; float time; size_t memory; int determinism, math, reserved[3]; } Performance;
static const int algorithms[] = {1, 0, 6, 7};

size_t cudnnGetVersion(void) { return VERSION; }
const char *cudnnGetErrorString(R status) { return status == 13 ? "CUDNN_STATUS_EXECUTION_FAILED" : "other"; }
R cudnnCreate(void **handle) { *handle = (void *)0x20; return 0; }
R cudnnSetStream(void *handle, void *stream) { return handle != (void *)0x20 || !stream; }
R cudnnCreateTensorDescriptor(void **made) { *made = calloc(1, sizeof(Tensor)); return 0; }
R cudnnCreateFilterDescriptor(void **made) { return cudnnCreateTensorDescriptor(made); }
R cudnnCreateConvolutionDescriptor(void **made) { *made = calloc(1, sizeof(Window)); return 0; }
R cudnnSetTensor4dDescriptor(Tensor *t, int order, int kind, int n, int c, int h, int w) {
  Tensor made = {order, kind == 9 ? 14 : kind, {n, c, h, w}};
  *t = made;
  return order < 0 || order > 1 || (kind != 0 && kind != 2 && kind != 9) ? 3 : 0;
}
R cudnnSetFilter4dDescriptor(Tensor *t, int kind, int order, int o, int c, int h, int w) {
  return cudnnSetTensor4dDescriptor(t, order, kind, o, c, h, w);
}
R cudnnSetConvolution2dDescriptor(Window *w, int ph, int pw, int u, int v, int dh, int dw, int mode, int kind) {
  Window made = {{ph, pw}, {u, v}, {dh, dw}, 1, 0};
  *w = made;
  return mode != 1 || kind != 0 ? 3 : 0;
}
R cudnnSetConvolutionGroupCount(Window *w, int groups) { w->groups = groups; return 0; }
R cudnnSetConvolutionMathType(Window *w, int math) { w->math = math; return math < 0 || math > 3 ? 3 : 0; }
static R check_window(const Tensor *x, const Tensor *w, const Window *over, const Tensor *y) {
  int ok = x->size[0] == y->size[0] && w->size[0] == y->size[1] && w->size[1] * over->groups == x->size[1];
  for (int d = 0; d < 2; d++) {
    int span = (w->size[2 + d] - 1) * over->dilation[d] + 1;
    ok = ok && (x->size[2 + d] + 2 * over->pad[d] - span) / over->stride[d] + 1 == y->size[2 + d];
  }
  return ok ? 0 : 3;
}
R cudnnGetConvolutionForwardAlgorithm_v7(void *handle, Tensor *x, Tensor *w, Window *over, Tensor *y, int asked,
                                         int *number, Performance *found) {
  if (handle != (void *)0x20 || check_window(x, w, over, y)) return 3;
  *number = asked < scripted_count ? asked : scripted_count;
  for (int i = 0; i < *number; i++) {
    Performance one = {algorithms[i], i == 3 ? 3000 : 0, 1.0f, (size_t)i * 4096, 1, over->math == 3 ? 0 : over->math, {0}};
    found[i] = one;
  }
  return 0;
}
static size_t place(const Tensor *t, int n, int c, int h, int w) {
  const int *s = t->size;
  return t->order ? (((size_t)n * s[2] + h) * s[3] + w) * s[1] + c : (((size_t)n * s[1] + c) * s[2] + h) * s[3] + w;
}
R cudnnConvolutionForward(void *handle, const float *alpha, Tensor *x, const void *X, Tensor *w, const void *W,
                          Window *over, int algorithm, void *workspace, size_t size, const float *beta, Tensor *y,
                          void *Y) {
  int number = 0;
  while (number < 4 && algorithms[number] != algorithm) number++;
  if (handle != (void *)0x20 || check_window(x, w, over, y) || *alpha != 1 || *beta != 0 || number > 2) return 3;
  if (size < (size_t)number * 4096 || (size && !workspace) || (x->kind == 0 && over->math == 1)) return 3;
  R refused = spend(number);
  if (refused) return refused;
  int outputs = y->size[1] / over->groups;
  for (int n = 0; n < y->size[0]; n++)
    for (int o = 0; o < y->size[1]; o++)
      for (int p = 0; p < y->size[2]; p++)
        for (int q = 0; q < y->size[3]; q++) {
          double sum = scripted_wrong >> number & 1;
          for (int c = 0; c < w->size[1]; c++)
            for (int r = 0; r < w->size[2]; r++)
              for (int s = 0; s < w->size[3]; s++) {
                int i = p * over->stride[0] + r * over->dilation[0] - over->pad[0];
                int j = q * over->stride[1] + s * over->dilation[1] - over->pad[1];
                if (i < 0 || j < 0 || i >= x->size[2] || j >= x->size[3]) continue;
                float pixel = read_element(X, x->kind, place(x, n, o / outputs * w->size[1] + c, i, j));
                sum += (double)pixel * read_element(W, w->kind, place(w, o, c, r, s));
              }
          write_element(Y, y->kind, place(y, n, o, p, q), sum);
        }
  return 0;
}
#endif
