// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/compressed/compressed_reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {
namespace {

constexpr std::int64_t kBits = 8;
/// Bytes of signs per task.
constexpr std::int64_t kGrain = 4096;

/// |x| / sqrt(numel); chunks are added in order, so that the result does not depend on threads.
float scale_of(const float* x, std::int64_t numel) {
  std::vector<double> sums(static_cast<std::size_t>((numel + kChunk - 1) / kChunk));
  ops::chunk_square_sums(x, numel, kChunk, sums.data());
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  return static_cast<float>(std::sqrt(sum / static_cast<double>(numel)));
}

/// Returns `scale`, which is not negative, with a sign. Branch-free, because signs are practically
/// random.
float signed_scale(float scale, std::uint32_t minus) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) | minus << 31);
}

/// Writes the signs (a set bit is +) and leaves in x the error: x - scale * sign.
void split_signs(float* x, std::int64_t numel, float scale, std::byte* signs) {
  at::parallel_for(0, numel / kBits, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t byte = begin; byte < end; ++byte) {
      float* const eight = x + byte * kBits;
      std::uint32_t bits = 0;
      for (unsigned b = 0; b < kBits; ++b) {
        const std::uint32_t minus = eight[b] < 0.0F ? 1U : 0U;
        bits |= (minus ^ 1U) << b;
        eight[b] -= signed_scale(scale, minus);
      }
      signs[byte] = static_cast<std::byte>(bits);
    }
  });
}

std::uint32_t minus_of(std::byte signs, unsigned bit) {
  return (std::to_integer<std::uint32_t>(signs) >> bit & 1U) ^ 1U;
}

void join_signs(const std::byte* signs, float scale, std::int64_t numel, float* out) {
  at::parallel_for(0, numel / kBits, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t byte = begin; byte < end; ++byte) {
      for (unsigned b = 0; b < kBits; ++b)
        out[byte * kBits + b] = signed_scale(scale, minus_of(signs[byte], b));
    }
  });
}

std::byte* bytes_of(const comm::RegionPtr& region) {
  return static_cast<std::byte*>(region->data());
}

/// Scales follow the signs at any alignment.
void put(std::byte* to, float value) {
  std::memcpy(to, &value, sizeof(value));
}
float take(const std::byte* from) {
  float value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

CompressedReduce::CompressedReduce(comm::World& world,
                                   const comm::Group& group,
                                   const std::vector<std::int64_t>& lengths)
    : world_(world), group_(group) {
  const int n = group_.size();
  for (const std::int64_t length : lengths) {
    const std::int64_t padded = padded_length(length, n);
    vectors_.push_back({numel_, length, padded});
    numel_ += padded;
  }
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  worker_error_ = at::zeros({numel_}, at::kFloat);
  server_error_ = at::zeros({numel_ / n}, at::kFloat);
  const std::size_t bytes = message_bytes() * static_cast<std::size_t>(n);
  to_owners_ = world_.host_transport().allocate(bytes, memory::Tag::Communication);
  from_owners_ = world_.host_transport().allocate(bytes, memory::Tag::Communication);
  received_ = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
}

CompressedReduce::~CompressedReduce() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    wait_reusable();
  } catch (const Error&) {
    // The job has failed; the rank that failed has reported the error.
  }
}

void CompressedReduce::wait_reusable() {
  for (const comm::WorkPtr* work : {&scatter_, &gather_}) {
    if (*work) (*work)->wait_reusable();
  }
}

std::int64_t CompressedReduce::padded_length(std::int64_t numel, int ranks) {
  const std::int64_t unit = ranks * std::lcm(static_cast<std::int64_t>(ranks), kBits);
  return (numel + unit - 1) / unit * unit;
}

std::size_t CompressedReduce::sign_bytes() const {
  return static_cast<std::size_t>(numel_ / kBits / group_.size());
}

std::size_t CompressedReduce::message_bytes() const {
  return sign_bytes() + vectors_.size() * sizeof(float);
}

std::span<float> CompressedReduce::worker_error(std::size_t vector) {
  const Vector& v = vectors_[vector];
  return {worker_error_.data_ptr<float>() + v.begin, static_cast<std::size_t>(v.padded)};
}

std::span<float> CompressedReduce::server_error(std::size_t vector) {
  const Vector& v = vectors_[vector];
  const int n = group_.size();
  return {server_error_.data_ptr<float>() + v.begin / n, static_cast<std::size_t>(v.padded / n)};
}

void CompressedReduce::forget() {
  worker_error_.zero_();
  server_error_.zero_();
}

void CompressedReduce::mean(float* flat) {
  wait_reusable();
  compress(flat);
  const std::size_t message = message_bytes(),
                    all = message * static_cast<std::size_t>(group_.size());
  scatter_ = world_.host_transport().all_to_all(group_,
                                                {to_owners_->data(), all, DType::U8, {}},
                                                {received_.data_ptr(), all, DType::U8, {}},
                                                TESSERA_HERE("signs of the ranks"));
  scatter_->wait();
  serve();
  const comm::Span gathered{from_owners_->data(), all, DType::U8, {}};
  gather_ = world_.host_transport().all_gather(
      group_,
      gathered.part(message * static_cast<std::size_t>(group_.index), message),
      gathered,
      TESSERA_HERE("signs of the mean"));
  gather_->wait();
  spread(flat);
}

void CompressedReduce::compress(const float* flat) {
  const int n = group_.size();
  for (std::size_t i = 0; i < vectors_.size(); ++i) {
    const Vector& vector = vectors_[i];
    const std::int64_t part = vector.padded / n;
    float* const error = worker_error(i).data();
    const float* const x = flat + vector.begin;
    at::parallel_for(0, vector.numel, kGrain * kBits, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin; k < end; ++k)
        error[k] += x[k];
    });
    const float scale = scale_of(error, vector.padded);
    for (int r = 0; r < n; ++r) {
      std::byte* const message =
          bytes_of(to_owners_) + message_bytes() * static_cast<std::size_t>(r);
      split_signs(error + r * part, part, scale, message + vector.begin / n / kBits);
      put(message + sign_bytes() + i * sizeof(float), scale);
    }
  }
}

/// Computes the part of every vector that this rank owns.
void CompressedReduce::serve() {
  const int n = group_.size();
  const auto* const received = static_cast<const std::byte*>(received_.const_data_ptr());
  std::byte* const out =
      bytes_of(from_owners_) + message_bytes() * static_cast<std::size_t>(group_.index);
  for (std::size_t i = 0; i < vectors_.size(); ++i) {
    const std::int64_t at = vectors_[i].begin / n / kBits, part = vectors_[i].padded / n;
    std::vector<float> scales;
    for (int r = 0; r < n; ++r) {
      scales.push_back(take(received + message_bytes() * static_cast<std::size_t>(r) +
                            sign_bytes() + i * sizeof(float)));
    }
    float* const error = server_error(i).data();
    const float share = 1.0F / static_cast<float>(n);
    at::parallel_for(0, part / kBits, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t byte = begin; byte < end; ++byte) {
        std::array<float, kBits> sum = {};
        for (std::size_t r = 0; r < scales.size(); ++r) {
          const std::byte signs =
              received[message_bytes() * r + static_cast<std::size_t>(at + byte)];
          for (unsigned b = 0; b < kBits; ++b)
            sum[b] += signed_scale(scales[r], minus_of(signs, b));
        }
        for (unsigned b = 0; b < kBits; ++b)
          error[byte * kBits + b] += sum[b] * share;
      }
    });
    const float scale = scale_of(error, part);
    split_signs(error, part, scale, out + at);
    put(out + sign_bytes() + i * sizeof(float), scale);
  }
}

void CompressedReduce::spread(float* flat) const {
  const int n = group_.size();
  for (int r = 0; r < n; ++r) {
    const std::byte* const message =
        bytes_of(from_owners_) + message_bytes() * static_cast<std::size_t>(r);
    for (std::size_t i = 0; i < vectors_.size(); ++i) {
      const std::int64_t part = vectors_[i].padded / n;
      join_signs(message + vectors_[i].begin / n / kBits,
                 take(message + sign_bytes() + i * sizeof(float)),
                 part,
                 flat + vectors_[i].begin + r * part);
    }
  }
}

}  // namespace tessera::parallel
