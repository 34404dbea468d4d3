// SPDX-License-Identifier: 0BSD
// Random inputs and comparison of results, for the check program of a library.
#ifndef EKC_CHECK_VALUES_H
#define EKC_CHECK_VALUES_H

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "naive.h"

namespace ekc::check {

using Bytes = std::vector<unsigned char>;

inline std::size_t count_bytes(Type type)
{
    return type == Type::int8 ? 1 : type == Type::float16 || type == Type::bfloat16 ? 2 : 4;
}

inline std::size_t count_bytes(const Tensor& tensor)
{
    return tensor.elements * count_bytes(tensor.type);
}

template <class To, class From>
To copy_bits(const From& from)
{
    static_assert(sizeof(To) == sizeof(From), "both have the same bytes");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

/// Round a finite value below 65504 to the nearest float16, halves to even.
inline std::uint16_t to_half(float value)
{
    const double magnitude = std::fabs(static_cast<double>(value));
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    const int last = magnitude > 0.0 ? std::max(exponent - 11, -24) : -24; // exponent of the last digit kept
    const long kept = std::lrint(std::ldexp(magnitude, -last));
    return static_cast<std::uint16_t>((last + 24) * 1024 + kept + (std::signbit(value) ? 0x8000 : 0));
}

inline float from_half(std::uint16_t bits)
{
    const int exponent = bits >> 10 & 31, digits = bits & 1023;
    const auto sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
    if (exponent == 0) {
        return std::copysign(std::ldexp(static_cast<float>(digits), -24), copy_bits<float>(sign | 0x3F800000u));
    }
    const int wide = exponent == 31 ? 255 : exponent + 112;
    return copy_bits<float>(sign | static_cast<std::uint32_t>(wide << 23 | digits << 13));
}

inline std::uint16_t to_bfloat(float value)
{
    const auto bits = copy_bits<std::uint32_t>(value);
    return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

/// Quantiles of the normal distribution at the middle of 65,536 equal shares; for a product near 1 and -1.
inline std::vector<float> compute_quantiles(double factor_count)
{
    constexpr std::size_t count = 65536;
    std::vector<float> found(count);
    double x = 0.0;
    for (std::size_t i = 0; i < count / 2; ++i) {
        const double above = 0.5 - (static_cast<double>(i) + 0.5) / static_cast<double>(count);
        // Newton's method from the quantile before never goes too far.
        for (double step = 1.0; step > 1e-13;) {
            const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::acos(-1.0));
            step = (0.5 * std::erfc(x / std::sqrt(2.0)) - above) / density;
            x += step;
        }
        found[count / 2 + i] = static_cast<float>(x);
        found[count / 2 - 1 - i] = static_cast<float>(-x);
    }
    if (factor_count > 0.0) {
        for (float& value : found) {
            const double near = std::exp(static_cast<double>(value) / std::sqrt(factor_count));
            value = static_cast<float>(std::copysign(near, static_cast<double>(value)));
        }
    }
    return found;
}

/// Value of an element from 16 random bits for a float type, 8 for int8, 32 for int32.
inline void write_value(Type type, std::uint32_t bits, const std::vector<float>& quantiles, bool odd, unsigned char* to)
{
    constexpr std::uint64_t max_int32 = 1000;
    const float real = quantiles[bits & 0xFFFFu];
    std::uint16_t half = 0;
    std::int32_t whole = 0;
    switch (type) {
    case Type::float32: std::memcpy(to, &real, sizeof real); break;
    case Type::float16: half = to_half(real); std::memcpy(to, &half, sizeof half); break;
    case Type::bfloat16: half = to_bfloat(real); std::memcpy(to, &half, sizeof half); break;
    case Type::int8: *to = static_cast<unsigned char>((bits & 0xFFu) | (odd ? 1u : 0u)); break;
    case Type::int32:
        whole = static_cast<std::int32_t>(bits * (2 * max_int32 + 1) >> 32) - static_cast<std::int32_t>(max_int32);
        whole |= odd ? 1 : 0;
        std::memcpy(to, &whole, sizeof whole);
        break;
    }
}

/// Random input: floats are standard normal, int8 uniform, int32 uniform within +-1000. Inputs of a product are
/// near 1 or -1, or odd. These are the distributions of the check that ekc made of each kernel.
inline Bytes draw_values(const Tensor& tensor, const std::vector<float>& quantiles, bool product, std::uint64_t seed)
{
    std::mt19937_64 random{seed};
    const std::size_t size = count_bytes(tensor.type);
    const int bits = tensor.type == Type::int8 ? 8 : tensor.type == Type::int32 ? 32 : 16;
    Bytes values(count_bytes(tensor));
    std::uint64_t drawn = 0;
    int left = 0;
    for (std::size_t i = 0; i < tensor.elements; ++i, left -= bits, drawn >>= bits) {
        if (left == 0) {
            drawn = random();
            left = 64;
        }
        write_value(tensor.type, static_cast<std::uint32_t>(drawn), quantiles, product, &values[i * size]);
    }
    return values;
}

inline double read_value(Type type, const unsigned char* from)
{
    float real = 0;
    std::uint16_t half = 0;
    std::int32_t whole = 0;
    switch (type) {
    case Type::float32: std::memcpy(&real, from, sizeof real); return static_cast<double>(real);
    case Type::float16: std::memcpy(&half, from, sizeof half); return static_cast<double>(from_half(half));
    case Type::bfloat16:
        std::memcpy(&half, from, sizeof half);
        return static_cast<double>(copy_bits<float>(static_cast<std::uint32_t>(half) << 16));
    case Type::int8: return static_cast<double>(static_cast<signed char>(*from));
    case Type::int32: std::memcpy(&whole, from, sizeof whole); return static_cast<double>(whole);
    }
    return 0.0;
}

/// Largest finite magnitude.
inline double find_scale(const Tensor& tensor, const Bytes& values)
{
    const std::size_t size = count_bytes(tensor.type);
    double scale = 0.0;
    for (std::size_t i = 0; i < tensor.elements; ++i) {
        const double value = std::fabs(read_value(tensor.type, &values[i * size]));
        scale = std::isfinite(value) ? std::max(scale, value) : scale;
    }
    return scale;
}

/// Tolerance for results of a size: it grows with the results, as rounding errors do.
inline double find_tolerance(const Operator& op, double scale)
{
    return op.scale > 0.0 ? op.tolerance * std::max(1.0, scale / op.scale) : op.tolerance;
}

struct Comparison {
    double max_error = 0.0;
    double tolerance = 0.0;
    std::size_t wrong = 0;      ///< elements beyond the tolerance
    std::size_t unwritten = 0;  ///< elements that still have the bytes from before the launch
    std::size_t not_finite = 0; ///< NaN or infinity where the naive kernel has a number
    std::size_t first = 0;      ///< first element of these
    double found = 0.0;         ///< its value
    double expected = 0.0;      ///< its value by the naive kernel
};

/// Compare a result with that of the naive kernel. All bytes of `found` were `poison` before the launch.
inline Comparison compare(
    const Tensor& tensor, const Bytes& expected, const unsigned char* found, unsigned char poison, double tolerance)
{
    const std::size_t size = count_bytes(tensor.type);
    Comparison result;
    result.tolerance = tolerance;
    for (std::size_t i = 0; i < tensor.elements; ++i) {
        const unsigned char* const own = found + i * size;
        if (std::memcmp(own, &expected[i * size], size) == 0) {
            continue;
        }
        const double value = read_value(tensor.type, own), right = read_value(tensor.type, &expected[i * size]);
        // A byte may be a result; several equal ones are no likely number.
        const bool unwritten = size > 1 && std::all_of(own, own + size, [=](unsigned char b) { return b == poison; });
        if (!unwritten && ((std::isnan(value) && std::isnan(right)) || value == right)) {
            continue;
        }
        const double distance = std::fabs(value - right);
        const double error = std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
        const bool not_finite = !unwritten && !std::isfinite(value) && std::isfinite(right);
        const bool wrong = !unwritten && !not_finite && error > tolerance;
        if ((unwritten || not_finite || wrong) && result.unwritten + result.not_finite + result.wrong == 0) {
            result.first = i;
            result.found = value;
            result.expected = right;
        }
        result.unwritten += unwritten ? 1u : 0u;
        result.not_finite += not_finite ? 1u : 0u;
        result.wrong += wrong ? 1u : 0u;
        result.max_error = std::max(result.max_error, error);
    }
    return result;
}

} // namespace ekc::check

#endif
