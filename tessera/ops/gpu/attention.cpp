// SPDX-License-Identifier: Apache-2.0
// Attention by the kernels that libtorch brings. Sources: Dao 2023, "FlashAttention-2"; NVIDIA
// cuDNN frontend, scaled dot product attention.
#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/ops/arguments.h"
#include "tessera/ops/gpu/attention_kernel.h"
#include "tessera/ops/gpu/backend.h"
#include "tessera/ops/packed_attention.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops {
namespace {

AttentionKernel chosen_kernel = AttentionKernel::Deterministic;

}  // namespace

void set_attention_kernel(AttentionKernel kernel) {
  chosen_kernel = kernel;
}
AttentionKernel attention_kernel() {
  return chosen_kernel;
}

namespace gpu {
namespace {

enum class Kernel { Reference, Flash, Cudnn };

/// Makes the backward of flash attention add in one order while it exists. libtorch's switch is for
/// the whole process; it is set for single calls, because some operations refuse to run with it.
class OneOrder {
 public:
  OneOrder()
      : before_(at::globalContext().deterministicAlgorithms()),
        warn_only_(at::globalContext().deterministicAlgorithmsWarnOnly()),
        fill_(at::globalContext().deterministicFillUninitializedMemory()) {
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~OneOrder() {
    at::globalContext().setDeterministicAlgorithms(before_, warn_only_);
    at::globalContext().setDeterministicFillUninitializedMemory(fill_);
  }
  OneOrder(const OneOrder&) = delete;
  OneOrder& operator=(const OneOrder&) = delete;

 private:
  bool before_, warn_only_, fill_;
};

/// True if flash attention computes these arguments. Its causal mask lets the last query see the
/// last key.
bool flash_can(const at::Tensor& q_BHTK, const at::Tensor& k_BGSK, const AttentionArgs& args) {
  constexpr std::int64_t kMostChannels = 256;
  const std::int64_t T = q_BHTK.size(2), S = k_BGSK.size(2), K = q_BHTK.size(3);
  const bool dtype = q_BHTK.scalar_type() == at::kBFloat16 || q_BHTK.scalar_type() == at::kHalf;
  const bool aligned = !args.causal && args.window == 0 ? true : args.query_offset == S - T;
  const bool plain = !args.mask_BS.defined() && !args.bias_HTS.defined() && args.alibi.empty() &&
                     args.softcap == 0.0 && !args.dropout.active();
  return dtype && aligned && plain && K % 8 == 0 && K <= kMostChannels && T > 0 && S >= T;
}

/// True if cuDNN's attention does so too.
bool cudnn_can(const at::Tensor& q_BHTK, const at::Tensor& k_BGSK, const AttentionArgs& args) {
  constexpr std::int64_t kMostChannels = 128;
  return !args.starts_BT.defined() && args.window == 0 && q_BHTK.size(1) == k_BGSK.size(1) &&
         q_BHTK.size(3) <= kMostChannels && (!args.causal || q_BHTK.size(2) == k_BGSK.size(2));
}

struct Windows {
  std::optional<c10::SymInt> left, right;
};
/// The keys that a query sees before and behind its own position.
Windows windows_of(const AttentionArgs& args) {
  if (args.window == 0) return {};
  if (args.causal) return {c10::SymInt(args.window - 1), c10::SymInt(0)};
  return {c10::SymInt(args.window), c10::SymInt(args.window)};
}

AttentionOut flash(const at::Tensor& q,
                   const at::Tensor& k,
                   const at::Tensor& v,
                   const AttentionArgs& args) {
  const auto [left, right] = windows_of(args);
  // Tokens before heads, as flash attention reads them.
  const auto results = at::_flash_attention_forward_symint(q.transpose(1, 2),
                                                           k.transpose(1, 2),
                                                           v.transpose(1, 2),
                                                           {},
                                                           {},
                                                           q.size(2),
                                                           k.size(2),
                                                           /*dropout_p=*/0.0,
                                                           args.causal,
                                                           /*return_debug_mask=*/false,
                                                           attention_scale(args, q),
                                                           left,
                                                           right);
  return {std::get<0>(results).transpose(1, 2), std::get<1>(results)};
}

using Grads = std::array<at::Tensor, 3>;

Grads flash_backward(const at::Tensor& dy,
                     const at::Tensor& q,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     const AttentionOut& out,
                     const AttentionArgs& args) {
  const auto [left, right] = windows_of(args);
  const at::Tensor no_random = at::empty({2}, at::device(q.device()).dtype(at::kUInt64));
  const at::Tensor unused = at::empty({}, at::device(q.device()).dtype(at::kUInt64));
  const auto [dq, dk, dv] = at::_flash_attention_backward_symint(dy.transpose(1, 2),
                                                                 q.transpose(1, 2),
                                                                 k.transpose(1, 2),
                                                                 v.transpose(1, 2),
                                                                 out.y_BHTK.transpose(1, 2),
                                                                 out.saved,
                                                                 {},
                                                                 {},
                                                                 q.size(2),
                                                                 k.size(2),
                                                                 /*dropout_p=*/0.0,
                                                                 args.causal,
                                                                 no_random,
                                                                 unused,
                                                                 attention_scale(args, q),
                                                                 left,
                                                                 right);
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

/// The documents of a batch, whose tokens are consecutive rows.
struct Packed {
  at::Tensor ends;           ///< int32 [documents + 1] on the device: 0 and the end of each
  std::int64_t longest = 0;  ///< tokens
};
/// Undefined ends if every sample is one document.
Packed packed_of(const at::Tensor& q_BHTK, const AttentionArgs& args) {
  if (!args.starts_BT.defined()) return {};
  const std::int64_t T = q_BHTK.size(2);
  std::vector<std::int32_t> ends = {0};
  Packed out;
  const auto samples = documents_of(args.starts_BT);
  for (std::size_t b = 0; b < samples.size(); ++b) {
    for (const Run& run : samples[b]) {
      ends.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(b) * T + run.end));
      out.longest = std::max(out.longest, run.end - run.begin);
    }
  }
  if (std::ssize(samples) + 1 < std::ssize(ends))
    out.ends = on_device(at::tensor(ends, at::kInt), q_BHTK.device());
  return out;
}

/// [B, H, T, K] as the rows [B * T, H, K]; a view if the channels of a token are together.
at::Tensor rows_of_tokens(const at::Tensor& x_BHTK) {
  return x_BHTK.transpose(1, 2).reshape({-1, x_BHTK.size(1), x_BHTK.size(3)});
}
at::Tensor tokens_of_rows(const at::Tensor& rows, const at::Tensor& like_BHTK) {
  return rows.view({like_BHTK.size(0), like_BHTK.size(2), rows.size(1), rows.size(2)})
      .transpose(1, 2);
}

// Documents of any lengths; the logarithms of the sums are [H, B * T] there.
AttentionOut flash_packed(const Packed& packed,
                          const at::Tensor& q,
                          const at::Tensor& k,
                          const at::Tensor& v,
                          const AttentionArgs& args) {
  const auto [left, right] = windows_of(args);
  const auto results = at::_flash_attention_forward_symint(rows_of_tokens(q),
                                                           rows_of_tokens(k),
                                                           rows_of_tokens(v),
                                                           packed.ends,
                                                           packed.ends,
                                                           packed.longest,
                                                           packed.longest,
                                                           /*dropout_p=*/0.0,
                                                           args.causal,
                                                           /*return_debug_mask=*/false,
                                                           attention_scale(args, q),
                                                           left,
                                                           right);
  const at::Tensor saved = std::get<1>(results).view({q.size(1), q.size(0), q.size(2)});
  return {tokens_of_rows(std::get<0>(results), q), saved.transpose(0, 1).contiguous()};
}

Grads flash_packed_backward(const Packed& packed,
                            const at::Tensor& dy,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const AttentionOut& out,
                            const AttentionArgs& args) {
  const auto [left, right] = windows_of(args);
  const at::Tensor no_random = at::empty({2}, at::device(q.device()).dtype(at::kUInt64));
  const at::Tensor unused = at::empty({}, at::device(q.device()).dtype(at::kUInt64));
  const at::Tensor saved = out.saved.transpose(0, 1).reshape({q.size(1), -1});
  const auto [dq, dk, dv] = at::_flash_attention_backward_symint(rows_of_tokens(dy),
                                                                 rows_of_tokens(q),
                                                                 rows_of_tokens(k),
                                                                 rows_of_tokens(v),
                                                                 rows_of_tokens(out.y_BHTK),
                                                                 saved,
                                                                 packed.ends,
                                                                 packed.ends,
                                                                 packed.longest,
                                                                 packed.longest,
                                                                 /*dropout_p=*/0.0,
                                                                 args.causal,
                                                                 no_random,
                                                                 unused,
                                                                 attention_scale(args, q),
                                                                 left,
                                                                 right);
  return {tokens_of_rows(dq, q), tokens_of_rows(dk, k), tokens_of_rows(dv, v)};
}

AttentionOut cudnn(const at::Tensor& q,
                   const at::Tensor& k,
                   const at::Tensor& v,
                   const AttentionArgs& args) {
  const auto results = at::_scaled_dot_product_cudnn_attention(q,
                                                               k,
                                                               v,
                                                               {},
                                                               /*compute_log_sumexp=*/true,
                                                               /*dropout_p=*/0.0,
                                                               args.causal,
                                                               /*return_debug_mask=*/false,
                                                               attention_scale(args, q));
  return {std::get<0>(results), std::get<1>(results).view({q.size(0), q.size(1), q.size(2)})};
}

Grads cudnn_backward(const at::Tensor& dy,
                     const at::Tensor& q,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     const AttentionOut& out,
                     const AttentionArgs& args) {
  const at::Tensor no_random = at::empty({}, at::device(q.device()).dtype(at::kLong));
  const auto [dq, dk, dv] =
      at::_scaled_dot_product_cudnn_attention_backward_symint(dy,
                                                              q,
                                                              k,
                                                              v,
                                                              out.y_BHTK,
                                                              out.saved.unsqueeze(3),
                                                              no_random,
                                                              no_random,
                                                              {},
                                                              {},
                                                              {},
                                                              q.size(2),
                                                              k.size(2),
                                                              /*dropout_p=*/0.0,
                                                              args.causal,
                                                              attention_scale(args, q));
  return {dq, dk, dv};
}

AttentionOut forward_by(Kernel kernel,
                        const at::Tensor& q,
                        const at::Tensor& k,
                        const at::Tensor& v,
                        const AttentionArgs& args) {
  if (kernel == Kernel::Cudnn) return cudnn(q, k, v, args);
  const Packed packed = packed_of(q, args);
  return packed.ends.defined() ? flash_packed(packed, q, k, v, args) : flash(q, k, v, args);
}

Grads backward_by(Kernel kernel,
                  const at::Tensor& dy,
                  const at::Tensor& q,
                  const at::Tensor& k,
                  const at::Tensor& v,
                  const AttentionOut& out,
                  const AttentionArgs& args) {
  if (kernel == Kernel::Cudnn) return cudnn_backward(dy, q, k, v, out, args);
  std::optional<OneOrder> one_order;
  if (attention_kernel() == AttentionKernel::Deterministic) one_order.emplace();
  const Packed packed = packed_of(q, args);
  return packed.ends.defined() ? flash_packed_backward(packed, dy, q, k, v, out, args)
                               : flash_backward(dy, q, k, v, out, args);
}

/// The seconds of a forward and a backward; infinite if the kernel refuses the shape.
double seconds_of(Kernel kernel,
                  const at::Tensor& q,
                  const at::Tensor& k,
                  const at::Tensor& v,
                  const AttentionArgs& args) {
  constexpr int kRounds = 3;  // the first one builds plans
  double best = std::numeric_limits<double>::infinity();
  try {
    for (int round = 0; round < kRounds; ++round) {
      wait_for_device(q.device());
      const auto begin = std::chrono::steady_clock::now();
      const AttentionOut out = forward_by(kernel, q, k, v, args);
      static_cast<void>(backward_by(kernel, out.y_BHTK, q, k, v, out, args));
      wait_for_device(q.device());
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (round > 0) best = std::min(best, took.count());
    }
  } catch (const c10::Error&) {
    return std::numeric_limits<double>::infinity();
  }
  return best;
}

/// The kernel for a shape. The choice among equally right ones is measured once for each shape.
Kernel kernel_for(const at::Tensor& q,
                  const at::Tensor& k,
                  const at::Tensor& v,
                  const AttentionArgs& args) {
  if (!flash_can(q, k, args)) return Kernel::Reference;
  if (attention_kernel() == AttentionKernel::Deterministic || !cudnn_can(q, k, args))
    return Kernel::Flash;
  using Shape = std::tuple<std::vector<std::int64_t>, std::int64_t, bool, at::ScalarType>;
  static std::mutex mutex;
  static std::map<Shape, Kernel> known;
  const std::lock_guard lock(mutex);
  const auto [found, fresh] = known.try_emplace(
      Shape(q.sizes().vec(), k.size(2), args.causal, q.scalar_type()), Kernel::Flash);
  if (fresh && seconds_of(Kernel::Cudnn, q, k, v, args) < seconds_of(Kernel::Flash, q, k, v, args))
    found->second = Kernel::Cudnn;
  return found->second;
}

}  // namespace

bool GpuBackend::takes_documents(const at::Tensor& q_BHTK,
                                 const at::Tensor& k_BGSK,
                                 const AttentionArgs& args) const {
  return flash_can(q_BHTK, k_BGSK, args);
}

AttentionOut GpuBackend::attention(const at::Tensor& q_BHTK,
                                   const at::Tensor& k_BGSK,
                                   const at::Tensor& v_BGSK,
                                   const AttentionArgs& args) const {
  const Kernel kernel = kernel_for(q_BHTK, k_BGSK, v_BGSK, args);
  if (kernel == Kernel::Reference) return AtenBackend::attention(q_BHTK, k_BGSK, v_BGSK, args);
  const AttentionOut out = forward_by(kernel, q_BHTK, k_BGSK, v_BGSK, args);
  const at::Tensor y = fused_heads(q_BHTK, 1)[0];
  if (out.y_BHTK.strides() == y.strides()) return out;
  y.copy_(out.y_BHTK);
  return {y, out.saved};
}

AttentionGrads GpuBackend::attention_backward(const at::Tensor& dy_BHTK,
                                              const at::Tensor& q_BHTK,
                                              const at::Tensor& k_BGSK,
                                              const at::Tensor& v_BGSK,
                                              const AttentionOut& out,
                                              const AttentionArgs& args) const {
  const Kernel kernel = kernel_for(q_BHTK, k_BGSK, v_BGSK, args);
  if (kernel == Kernel::Reference)
    return AtenBackend::attention_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, out, args);
  const at::Tensor dy = dy_BHTK.to(q_BHTK.scalar_type());
  const Grads made = backward_by(
      kernel, dy.stride(3) == 1 ? dy : dy.contiguous(), q_BHTK, k_BGSK, v_BGSK, out, args);
  // The gradients of fused projections are one tensor.
  std::vector<at::Tensor> d;
  if (q_BHTK.sizes() == k_BGSK.sizes()) {
    d = fused_heads(q_BHTK, 3);
  } else {
    d = {fused_heads(q_BHTK, 1)[0], fused_heads(k_BGSK, 1)[0], fused_heads(k_BGSK, 1)[0]};
  }
  for (std::size_t i = 0; i < made.size(); ++i)
    d[i].copy_(made[i]);
  return {d[0], d[1], d[2], {}};
}

std::int64_t GpuBackend::attention_scratch(const at::Tensor& q_BHTK,
                                           const at::Tensor& k_BGSK,
                                           const AttentionArgs& args,
                                           bool backward) const {
  if (!flash_can(q_BHTK, k_BGSK, args))
    return AtenBackend::attention_scratch(q_BHTK, k_BGSK, args, backward);
  if (!backward) return 0;
  // The backward has gradients of each head in 16 bits, an fp32 sum for those of the queries, and
  // in one order one such sum for each of the blocks of keys that run beside each other.
  constexpr std::int64_t kParts = 2;
  const std::int64_t H = q_BHTK.size(1);
  return 2 * (q_BHTK.numel() + 2 * k_BGSK.numel() / k_BGSK.size(1) * H) +
         4 * kParts * q_BHTK.numel();
}

}  // namespace gpu
}  // namespace tessera::ops
