// The layers of a plain decoder for a few new tokens: norm, attention over keys in fixed places, norm, feed.
//
// The threads go through all layers together and meet four times a layer; each makes its share of the outputs of every
// product and its share of the heads. What a token gets does not depend on the tokens that come with it.

#include <cmath>

struct Norm {
    const float *gain, *shift;
    double eps;
    long centred;  // 1: the mean is taken away (LayerNorm), 0: not (RMSNorm)
};

struct Layer {
    Norm before_mixer, before_feed;
    Product qkv, out, up, down;
    long heads, groups, channels, value_channels;
    double scale;
    long window;       // the newest keys that are seen; 0: all
    long turned;       // channels that rotary positions turn; 0: none
    long interleaved;  // whether neighbours are a pair, or channels half of `turned` apart
    long act, gated;
};

struct Tokens {
    const int64_t *places, *at;  // (B,T) the position of each, and the column of its keys
    long rows, length, columns;  // B, T and the columns that buffers (B,G,columns,C) have
};

static void normalise(const Norm &norm, const float *x, float *y, long width) {
    const long even = width / LANES * LANES;
    auto sum_of = [&](float less, bool squared) {
        Lanes sum = zero();
        for (long k = 0; k < even; k += LANES) {
            const Lanes d = add(read(x + k), all(1.f), all(-less));
            sum = squared ? add(d, d, sum) : add(d, all(1.f), sum);
        }
        float rest = 0;
        for (long k = even; k < width; k++) rest += squared ? (x[k] - less) * (x[k] - less) : x[k] - less;
        return total(sum) + rest;
    };
    const float mean = norm.centred ? sum_of(0, false) / width : 0;
    const float by = 1.f / std::sqrt(sum_of(mean, true) / width + (float)norm.eps);
    for (long k = 0; k < width; k++) {
        const float z = (x[k] - mean) * by * (norm.gain ? norm.gain[k] : 1.f);
        y[k] = norm.shift ? z + norm.shift[k] : z;
    }
}

static float activate(float x, long act) {
    switch (act) {
    case 0: return x > 0 ? x : 0;
    case 1: return 0.5f * x * (1 + std::erf(x * 0.70710678118654752f));
    case 2: return x / (1 + std::exp(-1.5957691216057308f * (x + 0.044715f * x * x * x)));  // gelu by tanh
    case 3: return x / (1 + std::exp(-1.702f * x));
    default: return x / (1 + std::exp(-x));
    }
}

// A head's channels as they are compared: the first `turned` of them turned by the token's cosines and sines.
static void turn(const Layer &layer, const float *x, const float *cos, const float *sin, float *y) {
    const long half = layer.turned / 2;
    std::copy(x + layer.turned, x + layer.channels, y + layer.turned);
    for (long i = 0; i < half; i++) {
        const long a = layer.interleaved ? 2 * i : i, b = layer.interleaved ? a + 1 : i + half;
        y[a] = x[a] * cos[i] - x[b] * sin[i];
        y[b] = x[b] * cos[i] + x[a] * sin[i];
    }
}

static float dot(const float *a, const float *b, long size) {
    const long even = size / LANES * LANES;
    Lanes sum = zero();
    for (long k = 0; k < even; k += LANES) sum = add(read(a + k), read(b + k), sum);
    float rest = 0;
    for (long k = even; k < size; k++) rest += a[k] * b[k];
    return total(sum) + rest;
}

// Softmax-weighted mean of the values at the columns from `first` to `last`.
static void look(const Layer &layer, const float *q, const float *keys, const float *values, long first, long last,
                 float *weights, float *y) {
    float peak = -INFINITY, sum = 0;
    for (long c = first; c <= last; c++) {
        weights[c] = dot(q, keys + c * layer.channels, layer.channels) * (float)layer.scale;
        peak = std::max(peak, weights[c]);
    }
    for (long c = first; c <= last; c++) sum += weights[c] = std::exp(weights[c] - peak);
    const long size = layer.value_channels, even = size / LANES * LANES;
    for (long k = 0; k < even; k += LANES) {
        Lanes mean = zero();
        for (long c = first; c <= last; c++) mean = add(all(weights[c]), read(values + c * size + k), mean);
        keep(y + k, add(mean, all(1 / sum), zero()));
    }
    for (long k = even; k < size; k++) {
        float mean = 0;
        for (long c = first; c <= last; c++) mean += weights[c] * values[c * size + k];
        y[k] = mean / sum;
    }
}

// One group of heads of one row: its keys and values take their columns, then its queries look.
static void attend(const Layer &layer, const Tokens &tokens, long row, long group, const float *qkv, const float *cos,
                   const float *sin, float *keys, float *values, std::vector<float> &room, float *y) {
    const long per_group = layer.heads / layer.groups, width = layer.qkv.outs / layer.groups, half = layer.turned / 2;
    room.resize(tokens.columns + layer.channels);
    float *weights = room.data(), *turned = weights + tokens.columns;
    keys += (row * layer.groups + group) * tokens.columns * layer.channels;
    values += (row * layer.groups + group) * tokens.columns * layer.value_channels;
    for (long t = 0; t < tokens.length; t++) {
        const long token = row * tokens.length + t, at = tokens.at[token];
        const float *k = qkv + token * layer.qkv.outs + group * width + per_group * layer.channels;
        turn(layer, k, cos + token * half, sin + token * half, keys + at * layer.channels);
        std::copy(k + layer.channels, k + layer.channels + layer.value_channels, values + at * layer.value_channels);
    }
    for (long t = 0; t < tokens.length; t++)
        for (long h = 0; h < per_group; h++) {
            const long token = row * tokens.length + t, last = tokens.places[token];
            const long first = layer.window ? std::max(0L, last - layer.window + 1) : 0;
            const float *q = qkv + token * layer.qkv.outs + group * width + h * layer.channels;
            turn(layer, q, cos + token * half, sin + token * half, turned);
            float *place = y + token * layer.out.ins + (group * per_group + h) * layer.value_channels;
            look(layer, turned, keys, values, first, last, weights, place);
        }
}

// x (B,T,width) goes through all layers, in its place. `keys`, `values`, `cos` and `sin` have one entry a layer;
// `held` has room for the widest qkv, the widest mean of values and the widest inner channels of all tokens.
extern "C" void layers(const Layer *all_layers, long count, float *x, long width, const int64_t *places,
                       const int64_t *at, long rows, long length, long columns, float **keys, float **values,
                       const float **cos, const float **sin, float *held, long threads) {
    const Tokens tokens{places, at, rows, length, columns};
    const long M = rows * length;
    long widest_qkv = 0, widest_mean = 0;
    for (long i = 0; i < count; i++) {
        widest_qkv = std::max(widest_qkv, all_layers[i].qkv.outs);
        widest_mean = std::max(widest_mean, all_layers[i].out.ins);
    }
    float *qkv = held, *means = qkv + M * widest_qkv, *inner = means + M * widest_mean;
#pragma omp parallel num_threads(threads)
    {
        const long me = omp_get_thread_num(), all = omp_get_num_threads();
        static thread_local std::vector<float> normed, room;
        normed.resize(M * width);
        for (long i = 0; i < count; i++) {
            const Layer &layer = all_layers[i];
            for (long m = 0; m < M; m++) normalise(layer.before_mixer, x + m * width, normed.data() + m * width, width);
            multiply(layer.qkv, normed.data(), qkv, M, me, all, false);
#pragma omp barrier
            for (long unit = me; unit < rows * layer.groups; unit += all)
                attend(layer, tokens, unit / layer.groups, unit % layer.groups, qkv, cos[i], sin[i], keys[i], values[i],
                       room, means);
#pragma omp barrier
            multiply(layer.out, means, x, M, me, all, true);
#pragma omp barrier
            for (long m = 0; m < M; m++) normalise(layer.before_feed, x + m * width, normed.data() + m * width, width);
            const Share mine = multiply(layer.up, normed.data(), inner, M, me, all, false);
            for (long m = 0; m < M; m++) {
                float *h = inner + m * layer.up.outs;
                if (!layer.gated)
                    for (long n = mine.from; n < mine.to; n++) h[n] = activate(h[n], layer.act);
                else
                    for (long n = mine.from; n < mine.to; n += 2) h[n] = activate(h[n], layer.act) * h[n + 1];
            }
#pragma omp barrier
            const float *fed = inner;
            if (layer.gated) {  // every second of them; each thread gathers them for itself
                normed.resize(std::max(M * width, M * layer.down.ins));
                for (long k = 0; k < M * layer.down.ins; k++) normed[k] = inner[2 * k];
                fed = normed.data();
            }
            multiply(layer.down, fed, x, M, me, all, true);
#pragma omp barrier
        }
    }
}
