// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/activation.h"

#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/op_log.h"
#include "tessera/ops/op_trace.h"

namespace tessera::ops {
namespace {

const std::pair<const char*, Activation> kNames[] = {{"gelu_tanh", Activation::GeluTanh},
                                                     {"gelu_new", Activation::GeluTanh},
                                                     {"gelu", Activation::Gelu},
                                                     {"relu", Activation::Relu},
                                                     {"silu", Activation::Silu},
                                                     {"quick_gelu", Activation::QuickGelu},
                                                     {"relu2", Activation::SquaredRelu}};

/// Returns F for x [..., 2 F].
std::int64_t gated_features(const at::Tensor& x) {
  TESSERA_REQUIRE(x.dim() > 0 && x.size(-1) > 0 && x.size(-1) % 2 == 0,
                  Shape,
                  "gates of " + shape(x),
                  "the last dimension holds as many gates as features behind them");
  return x.size(-1) / 2;
}

}  // namespace

std::vector<std::string> activation_names() {
  std::vector<std::string> names;
  for (const auto& [name, activation] : kNames)
    names.emplace_back(name);
  return names;
}

Activation activation_from_name(std::string_view name) {
  for (const auto& [known, activation] : kNames) {
    if (name == known) return activation;
  }
  throw Error(Error::Kind::Config,
              "unknown activation \"" + std::string(name) + "\"",
              text::suggestion(name, activation_names()));
}

at::Tensor activate(const at::Tensor& x, Activation activation) {
  at::Tensor y = at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
  const OpScope scope("activation", [&] {
    return OpWork{.bytes = 2.0 * static_cast<double>(x.nbytes()), .shape = shape(x)};
  });
  if (x.is_meta()) return y;
  backend(x.device()).activate(x, activation, y);
  trace_call("tessera::activate",
             [&] {
               return std::vector<c10::IValue>{x, static_cast<std::int64_t>(activation)};
             },
             {y});
  return y;
}

at::Tensor activate_backward(const at::Tensor& dy, const at::Tensor& x, Activation activation) {
  TESSERA_REQUIRE(dy.numel() == x.numel(),
                  Shape,
                  "activation gradient of " + shape(dy) + " for an input of " + shape(x),
                  "both need the same shape");
  at::Tensor dx = at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
  const OpScope scope("activation backward", [&] {
    return OpWork{.bytes = 3.0 * static_cast<double>(x.nbytes()), .shape = shape(x)};
  });
  if (x.is_meta()) return dx;
  backend(x.device()).activate_backward(dy, x, activation, dx);
  return dx;
}

at::Tensor gated(const at::Tensor& x, Activation activation) {
  const std::int64_t F = gated_features(x);
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = F;
  at::Tensor y = at::empty(sizes, x.options());
  const OpScope scope("gated activation", [&] {
    return OpWork{.bytes = 1.5 * static_cast<double>(x.nbytes()), .shape = shape(x)};
  });
  if (x.is_meta()) return y;
  backend(x.device()).gated(x, activation, y);
  trace_call("tessera::gated",
             [&] {
               return std::vector<c10::IValue>{x, static_cast<std::int64_t>(activation)};
             },
             {y});
  return y;
}

at::Tensor gated_backward(const at::Tensor& dy, const at::Tensor& x, Activation activation) {
  const std::int64_t F = gated_features(x), N = x.numel() / (2 * F);
  TESSERA_REQUIRE(dy.numel() == N * F,
                  Shape,
                  "gated activation gradient of " + shape(dy) + " for an input of " + shape(x),
                  "its last dimension is half of the input's");
  at::Tensor dx = at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
  const OpScope scope("gated activation backward", [&] {
    return OpWork{.bytes = 2.5 * static_cast<double>(x.nbytes()), .shape = shape(x)};
  });
  if (x.is_meta()) return dx;
  backend(x.device()).gated_backward(dy, x, activation, dx);
  return dx;
}

}  // namespace tessera::ops
