/* What lowered kernels call when they run on a CPU. */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    int64_t rank;
    void *descriptor; /* allocated, aligned, offset, sizes[rank], strides[rank] */
} Unranked;

/* Copies one strided memref into another, element by element. */
void memrefCopy(int64_t bytes, Unranked *source, Unranked *target) {
    int64_t rank = source->rank, place[16] = {0};
    int64_t *from = source->descriptor, *to = target->descriptor;
    char *read = (char *)((void **)source->descriptor)[1] + bytes * from[2];
    char *write = (char *)((void **)target->descriptor)[1] + bytes * to[2];
    int64_t *size = from + 3, *step = from + 3 + rank, *stride = to + 3 + rank;
    for (int64_t i = 0; i < rank; i++)
        if (size[i] <= 0) return;
    for (;;) {
        int64_t a = 0, b = 0, i = rank - 1;
        for (int64_t j = 0; j < rank; j++) {
            a += place[j] * step[j];
            b += place[j] * stride[j];
        }
        memcpy(write + b * bytes, read + a * bytes, bytes);
        for (; i >= 0; i--) {
            if (++place[i] < size[i]) break;
            place[i] = 0;
        }
        if (i < 0) return;
    }
}

#define LIBRARY(name, value) \
    float __hmf_##name(float x) { return value; }
LIBRARY(tanhf, tanhf(x))
LIBRARY(log1pf, log1pf(x))
LIBRARY(erff, erff(x))
LIBRARY(expf, expf(x))
LIBRARY(logf, logf(x))
LIBRARY(tanf, tanf(x))
LIBRARY(atanf, atanf(x))
LIBRARY(recipf, 1.0f / x)

/* float32 to bfloat16, to nearest even; NaN stays NaN. */
unsigned short kernelgen_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return (bits >> 16) | 0x40;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

#ifdef __x86_64__
/* The compiler's routine returns the sixteen bits in xmm0. */
__asm__(".globl __truncsfbf2\n__truncsfbf2:\n subq $8, %rsp\n call kernelgen_bfloat16@PLT\n movzwl %ax, %eax\n"
        " movd %eax, %xmm0\n addq $8, %rsp\n ret\n");
#endif
