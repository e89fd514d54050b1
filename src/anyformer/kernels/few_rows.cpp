// Products of a few rows with a matrix of weights, each weight read from memory once: y = scale * (x w') + bias.
//
// x (M,K) and y (M,N) are float32; w (N,K) is float32 or 8 bits, widened as it is read. One token after the other, the
// reading of the weights is all the time there is: SIDE rows of weights run side by side, a piece of about STRETCH
// bytes of each at a time, while the piece after it is on its way from memory. Every sum is made in one order whatever
// M is, so a row's answer does not depend, not by a bit, on the rows it came with.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
constexpr int LANES = 16, SIDE = 4, MOST = 6;  // MOST rows of x beside SIDE rows of weights fill the registers
typedef __m512 Lanes;
static inline Lanes zero() { return _mm512_setzero_ps(); }
static inline Lanes read(const float *p) { return _mm512_loadu_ps(p); }
static inline Lanes read(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline Lanes add(Lanes a, Lanes b, Lanes sum) { return _mm512_fmadd_ps(a, b, sum); }
static inline float total(Lanes a) { return _mm512_reduce_add_ps(a); }
static inline Lanes all(float a) { return _mm512_set1_ps(a); }
static inline void keep(float *p, Lanes a) { _mm512_storeu_ps(p, a); }
#define IN_REGISTER(a) asm("" : "+v"(a))  // else it is read again for every use, and reading is what is scarce
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
constexpr int LANES = 8, SIDE = 2, MOST = 4;
typedef __m256 Lanes;
static inline Lanes zero() { return _mm256_setzero_ps(); }
static inline Lanes read(const float *p) { return _mm256_loadu_ps(p); }
static inline Lanes read(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline Lanes add(Lanes a, Lanes b, Lanes sum) { return _mm256_fmadd_ps(a, b, sum); }
static inline float total(Lanes a) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}
static inline Lanes all(float a) { return _mm256_set1_ps(a); }
static inline void keep(float *p, Lanes a) { _mm256_storeu_ps(p, a); }
#define IN_REGISTER(a)
#else
constexpr int LANES = 4, SIDE = 2, MOST = 4;
struct Lanes { float of[LANES]; };
static inline Lanes zero() { return Lanes{}; }
template <class W> static inline Lanes read(const W *p) {
    Lanes a;
    for (int i = 0; i < LANES; i++) a.of[i] = (float)p[i];
    return a;
}
static inline Lanes add(Lanes a, Lanes b, Lanes sum) {
    for (int i = 0; i < LANES; i++) sum.of[i] += a.of[i] * b.of[i];
    return sum;
}
static inline float total(Lanes a) { return (a.of[0] + a.of[1]) + (a.of[2] + a.of[3]); }
static inline Lanes all(float a) { return Lanes{{a, a, a, a}}; }
static inline void keep(float *p, Lanes a) { memcpy(p, a.of, sizeof a.of); }
#define IN_REGISTER(a)
#endif

constexpr long STRETCH = 1024, LINE = 64;  // bytes
constexpr long AHEAD = 2;                  // how many times SIDE rows later what is asked for now is read
constexpr long TOGETHER = 48;              // rows of x that meet the weights in one reading

// What is to be on its way from memory: R lines of the cache a step, `along` apart from step to step and `across` from
// one to the next. Rows that follow each other are asked for line by line: the memory is quickest in its own order.
struct Soon { const char *from; long along, across; };

// M rows of x, laid out (count, M, LANES), with R rows of weights; `sums` (M, R, LANES) go on where they were.
template <class W, int M, int R>
static void tile(float *sums, const float *x, const W *w, long stride, long count, bool first, Soon soon) {
    Lanes held[M][R];
    for (int m = 0; m < M; m++)
        for (int r = 0; r < R; r++) held[m][r] = first ? zero() : read(sums + (m * R + r) * LANES);
    constexpr int STEPS = LINE / sizeof(W) / LANES;
    static_assert(STEPS >= 1, "a line of the cache holds the lanes of one step");
    auto step = [&](long c) __attribute__((always_inline)) {
        Lanes v[R];
        for (int r = 0; r < R; r++) {
            v[r] = read(w + r * stride + c * LANES);
            if (M > 1) IN_REGISTER(v[r]);
        }
        for (int m = 0; m < M; m++) {
            Lanes u = read(x + (c * M + m) * LANES);
            if (R > 1) IN_REGISTER(u);
            for (int r = 0; r < R; r++) held[m][r] = add(u, v[r], held[m][r]);
        }
    };
    long c = 0;
    for (; c + STEPS <= count; c += STEPS) {
        if (soon.from)
            for (int r = 0; r < R; r++) __builtin_prefetch(soon.from + c / STEPS * soon.along + r * soon.across);
        for (int i = 0; i < STEPS; i++) step(c + i);
    }
    for (; c < count; c++) step(c);
    for (int m = 0; m < M; m++)
        for (int r = 0; r < R; r++) keep(sums + (m * R + r) * LANES, held[m][r]);
}

template <class W, int R>
static void tiles(int M, float *sums, const float *x, const W *w, long stride, long count, bool first, Soon soon) {
    switch (M) {
    case 1: return tile<W, 1, R>(sums, x, w, stride, count, first, soon);
    case 2: return tile<W, 2, R>(sums, x, w, stride, count, first, soon);
    case 3: return tile<W, 3, R>(sums, x, w, stride, count, first, soon);
    case 4: return tile<W, 4, R>(sums, x, w, stride, count, first, soon);
    case 5: return tile<W, 5, R>(sums, x, w, stride, count, first, soon);
    case 6: return tile<W, 6, R>(sums, x, w, stride, count, first, soon);
    }
}

// The outputs from `from` to `to` of at most TOGETHER rows, in the place of y or added to it.
template <class W>
static void outputs(const float *x, const W *w, long M, long K, long N, const float *scale, const float *bias,
                    float *y, long from, long to, bool onto) {
    const long even = K / LANES * LANES, columns = STRETCH / sizeof(W), groups = (M + MOST - 1) / MOST;
    auto begin = [&](long group) { return group * M / groups; };
    const float *laid = x;
    static thread_local std::vector<float> room;  // each thread's own copy stays in its own cache
    if (M > 1) {
        room.resize(M * even + LINE);
        float *p = (float *)(((uintptr_t)room.data() + LINE - 1) / LINE * LINE);
        laid = p;
        for (long g = 0; g < groups; g++)
            for (long k = 0; k < even; k += LANES)
                for (long m = begin(g); m < begin(g + 1); m++, p += LANES)
                    memcpy(p, x + m * K + k, LANES * sizeof(float));
    }
    alignas(LINE) float sums[TOGETHER * SIDE * LANES];
    for (long n = from; n < to;) {
        const int R = to - n >= SIDE ? SIDE : 1;
        const W *rows = w + n * K;
        if (even == 0) memset(sums, 0, sizeof sums);
        for (long k = 0; k < even; k += columns) {
            const long count = std::min(columns, even - k) / LANES;
            const bool whole = even <= columns;  // rows, and not pieces of them
            const W *next = whole ? rows + AHEAD * R * K : k + columns < even ? rows + k + columns : rows + R * K;
            const Soon ask{(const char *)next, whole ? R * LINE : LINE, whole ? LINE : K * (long)sizeof(W)};
            for (long g = 0; g < groups; g++) {
                const long at = begin(g), size = begin(g + 1) - at;
                const float *some = laid + at * even + k * size;
                const Soon soon = g == 0 ? ask : Soon{};
                float *mine = sums + at * R * LANES;
                if (R == SIDE) tiles<W, SIDE>(size, mine, some, rows + k, K, count, k == 0, soon);
                else tiles<W, 1>(size, mine, some, rows + k, K, count, k == 0, soon);
            }
        }
        for (long m = 0; m < M; m++)
            for (int r = 0; r < R; r++) {
                float sum = total(read(sums + (m * R + r) * LANES));
                for (long k = even; k < K; k++) sum += x[m * K + k] * (float)rows[r * K + k];
                if (scale) sum *= scale[n + r];
                if (bias) sum += bias[n + r];
                float &place = y[m * N + n + r];
                place = onto ? place + sum : sum;
            }
        n += R;
    }
}

struct Product {
    const void *w;
    const float *scale, *bias;  // a scale: w is in 8 bits
    long ins, outs;
};

struct Share { long from, to; };

// What one of `all` threads makes of `count` outputs; no pair of neighbours is parted.
static Share share_of(long count, long me, long all) {
    const long each = ((count + all - 1) / all + SIDE - 1) / SIDE * SIDE, from = std::min(count, me * each);
    return {from, std::min(count, from + each)};
}

static Share multiply(const Product &p, const float *x, float *y, long M, long me, long all, bool onto) {
    const Share mine = share_of(p.outs, me, all);
    const long parts = (M + TOGETHER - 1) / TOGETHER;
    for (long part = 0; part < parts && mine.from < mine.to; part++) {
        const long m = part * M / parts, some = (part + 1) * M / parts - m;
        const float *xs = x + m * p.ins;
        float *ys = y + m * p.outs;
        if (p.scale)
            outputs(xs, (const int8_t *)p.w, some, p.ins, p.outs, p.scale, p.bias, ys, mine.from, mine.to, onto);
        else
            outputs(xs, (const float *)p.w, some, p.ins, p.outs, p.scale, p.bias, ys, mine.from, mine.to, onto);
    }
    return mine;
}

extern "C" void product(const void *x, const void *w, const void *scale, const void *bias, void *y, long M, long K,
                        long N, long threads) {
    const Product p{w, (const float *)scale, (const float *)bias, K, N};
#pragma omp parallel num_threads(threads)
    multiply(p, (const float *)x, (float *)y, M, omp_get_thread_num(), omp_get_num_threads(), false);
}
