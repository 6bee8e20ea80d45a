// SPDX-License-Identifier: Apache-2.0
// labels: slow
// The order of the plugin's own kernels among streams is checked like that of libtorch's
// operations, and they touch nothing but what their operations name.
#include <functional>
#include <string>
#include <vector>

#include "devices/emulated_gpu.h"
#include "devices/simulated_kernels.h"
#include "devices/two_streams.h"
#include "ops/support.h"
#include "ops/updates.h"
#include <gmock/gmock.h>

#include "tessera/tensor/upload.h"

namespace tessera::test {
namespace {

using ops::Backend;
using ops::random;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Operands and results of an operation on a device, the results last.
struct Call {
  std::vector<at::Tensor> reads, writes;
  std::function<void(const Backend&)> run;
  std::vector<at::Tensor> others = {};  ///< also used
  bool waits = false;                   ///< the host waits for the result
};
struct KernelCase {
  const char* name;  ///< in violations
  std::function<Call(at::Device)> make;
};

at::Tensor there(const at::Tensor& x, at::Device device) {
  return x.to(device);
}
at::Tensor numbers(at::IntArrayRef sizes, at::Device device) {
  return there(random(sizes, 1), device);
}

/// An update of ops/updates.h, of the weights or only of the third state.
KernelCase update_case(const char* name, const char* of, bool of_weights = true) {
  return {name, [of, of_weights](at::Device device) {
            const ops::UpdatedRange data(DType::BF16, 2500, device);
            Call out = {{data.grad}, {of_weights ? data.master : data.third}, nullptr, data.all()};
            for (const auto& [title, update] : ops::all_updates()) {
              if (title == of) out.run = [data, update](const Backend& on) { update(on, data); };
            }
            return out;
          }};
}

std::vector<KernelCase> kernel_cases() {
  using ops::Activation;
  static const at::Tensor none;
  return {
      {"activate",
       [](at::Device d) {
         const at::Tensor x = numbers({4, 6}, d), y = at::empty_like(x);
         return Call{{x}, {y}, [=](const Backend& on) { on.activate(x, Activation::Silu, y); }};
       }},
      {"activate_backward",
       [](at::Device d) {
         const at::Tensor x = numbers({4, 6}, d), dy = numbers({4, 6}, d), dx = at::empty_like(x);
         return Call{{dy, x}, {dx}, [=](const Backend& on) {
                       on.activate_backward(dy, x, Activation::Silu, dx);
                     }};
       }},
      {"gated",
       [](at::Device d) {
         const at::Tensor x = numbers({4, 6}, d), y = numbers({4, 3}, d);
         return Call{{x}, {y}, [=](const Backend& on) { on.gated(x, Activation::Silu, y); }};
       }},
      {"gated_backward",
       [](at::Device d) {
         const at::Tensor x = numbers({4, 6}, d), dy = numbers({4, 3}, d), dx = at::empty_like(x);
         return Call{{dy, x}, {dx}, [=](const Backend& on) {
                       on.gated_backward(dy, x, Activation::Silu, dx);
                     }};
       }},
      {"dropout",
       [](at::Device d) {
         const at::Tensor x = numbers({2, 6}, d), plus = numbers({2, 6}, d), y = at::empty_like(x);
         return Call{{x, plus}, {y}, [=](const Backend& on) {
                       on.dropout(x, plus, {.p = 0.5, .key = 1, .sample_ids = {0, 1}}, y);
                     }};
       }},
      {"embedding_grad",
       [](at::Device d) {
         const at::Tensor dy = numbers({3, 4}, d), dw = at::zeros({5, 4}).to(d),
                          ids = on_device(ops::int64s({1, 4, 1}), d);
         return Call{
             {dy}, {dw}, [=](const Backend& on) { on.embedding_grad(dy, ids, true, dw); }, {ids}};
       }},
      {"norm",
       [](at::Device d) {
         const at::Tensor x = numbers({2, 6}, d), branch = numbers({2, 6}, d),
                          weight = numbers({6}, d), y = at::empty_like(x), sum = at::empty_like(x),
                          rstd = numbers({2}, d);
         return Call{{x, branch, weight}, {y, sum, rstd}, [=](const Backend& on) {
                       on.norm({x, weight, none, branch, 1e-5, y, none, rstd, sum});
                     }};
       }},
      {"norm_backward",
       [](at::Device d) {
         const at::Tensor x = numbers({2, 6}, d), dy = numbers({2, 6}, d), weight = numbers({6}, d),
                          rstd = numbers({2}, d), dx = at::empty_like(x), dw = numbers({6}, d),
                          dbranch = at::empty_like(x);
         return Call{
             {dy, x, rstd, weight}, {dx, dw, dbranch}, [=](const Backend& on) {
               const ops::DropoutKey key = {.p = 0.5, .key = 1, .sample_ids = {0, 1}};
               on.norm_backward(
                   {dy, x, none, rstd, weight, none, dx, dw, none, true, false, &key, dbranch});
             }};
       }},
      {"cross_entropy",
       [](at::Device d) {
         const at::Tensor logits = numbers({2, 9}, d), gradient = at::empty_like(logits),
                          labels = ops::int64s({3, 0}).to(d);
         return Call{{logits, labels}, {gradient}, [=](const Backend& on) {
                       static_cast<void>(on.cross_entropy(logits, labels, 0.0, gradient));
                     }};
       }},
      {"reduce_parts",
       [](at::Device d) {
         const at::Tensor parts = numbers({2, 9}, d), out = numbers({9}, d);
         return Call{{parts}, {out}, [=](const Backend& on) {
                       on.reduce_parts(parts, comm::Op::Sum, false, out);
                     }};
       }},
      {"linear_bias_grad",
       [](at::Device d) {
         const at::Tensor dy = numbers({3, 4}, d), db = numbers({4}, d);
         return Call{{dy}, {db}, [=](const Backend& on) { on.linear_bias_grad(dy, true, db); }};
       }},
      {"rotary",
       [](at::Device d) {
         const at::Tensor x = numbers({1, 2, 3, 4}, d), y = at::empty_like(x);
         const ops::RotaryTable table = {numbers({1, 3, 2}, d), numbers({1, 3, 2}, d)};
         return Call{{x, table.cosine_BTP, table.sine_BTP}, {y}, [=](const Backend& on) {
                       on.rotary(x, table, 1, y);
                     }};
       }},
      {"widen_int8",
       [](at::Device d) {
         const at::Tensor rows = there(at::ones({2, 4}, at::kChar), d), scales = numbers({2}, d),
                          out = numbers({2, 4}, d);
         return Call{
             {rows, scales}, {out}, [=](const Backend& on) { on.widen_int8(rows, scales, out); }};
       }},
      {"narrow_nf4",
       [](at::Device d) {
         const at::Tensor values = numbers({64}, d), codes = there(at::zeros({32}, at::kByte), d),
                          scales = numbers({1}, d);
         return Call{{values}, {codes, scales}, [=](const Backend& on) {
                       on.narrow_nf4(values, codes, scales);
                     }};
       }},
      {"widen_nf4",
       [](at::Device d) {
         const at::Tensor codes = there(at::zeros({32}, at::kByte), d), scales = numbers({1}, d),
                          out = numbers({64}, d);
         return Call{
             {codes, scales}, {out}, [=](const Backend& on) { on.widen_nf4(codes, scales, out); }};
       }},
      {"sample_token",
       [](at::Device d) {
         const at::Tensor logits = numbers({9}, d);
         return Call{
             {logits},
             {},
             [=](const Backend& on) { static_cast<void>(on.sample_token(logits, 9, {}, 1, 0)); },
             {},
             /*waits=*/true};
       }},
      {"chunk_square_sums",
       [](at::Device d) {
         const at::Tensor grad = numbers({2000}, d);
         return Call{{grad}, {}, [=](const Backend& on) {
                       const at::Tensor sums = landing_room(2, at::kDouble, d);
                       on.chunk_square_sums(
                           grad.const_data_ptr<float>(), 2000, 1024, sums.data_ptr<double>(), d);
                     }};
       }},
      {"first_nonfinite",
       [](at::Device d) {
         const at::Tensor values = numbers({2000}, d);
         return Call{{values},
                     {},
                     [=](const Backend& on) {
                       const auto* const first = values.const_data_ptr<float>();
                       static_cast<void>(on.first_nonfinite(first, 2000, d));
                     },
                     {},
                     /*waits=*/true};
       }},
      {"column_square_sums",
       [](at::Device d) {
         const at::Tensor values = numbers({5, 4}, d);
         return Call{{values}, {}, [=](const Backend& on) {
                       const at::Tensor sums = landing_room(4, at::kDouble, d);
                       on.column_square_sums(
                           values.const_data_ptr<float>(), 5, 4, sums.data_ptr<double>(), d);
                     }};
       }},
      {"lamb_prepare",
       [](at::Device d) {
         const ops::UpdatedRange data(DType::F32, 2000, d);
         return Call{{data.grad, data.master},
                     {data.first},
                     [=](const Backend& on) {
                       const at::Tensor of_weights = landing_room(2, at::kDouble, d),
                                        of_updates = landing_room(2, at::kDouble, d);
                       on.lamb_prepare(data.range,
                                       data.state(data.first),
                                       data.state(data.second),
                                       {},
                                       of_weights.data_ptr<double>(),
                                       of_updates.data_ptr<double>());
                     },
                     data.all()};
       }},
      update_case("adamw", "AdamW"),
      update_case("sgd", "SGD"),
      update_case("adagrad", "Adagrad"),
      update_case("lion", "Lion"),
      update_case("rmsprop", "RMSprop"),
      update_case("nadam", "NAdam"),
      update_case("adamax", "Adamax"),
      update_case("lamb_update", "LAMB"),
      update_case("make_direction", "a direction", /*of_weights=*/false),
      update_case("apply_direction", "a step along a direction"),
  };
}

class PluginKernels : public Streams, public ::testing::WithParamInterface<KernelCase> {
 protected:
  /// Runs the operation on the side stream, after what made its operands if `ordered`.
  void run(const Call& call, bool ordered) const {
    if (ordered) order(first_, side_);
    on_side([&] { call.run(emulated_gpu()); });
  }
  [[nodiscard]] Call make() const { return GetParam().make(device_); }
  const std::string does_ = std::string(GetParam().name) + " on stream";
};

TEST_P(PluginKernels, NeedAnEventAfterWhatMadeTheirOperands) {
  {
    const Call call = make();
    // The host has waited for the copies of the operands; a kernel writes one of them again.
    for (const at::Tensor& x : call.reads)
      x.zero_();
    (void)take_violations();
    run(call, /*ordered=*/false);
    EXPECT_THAT(take_violations(), Contains(AllOf(HasSubstr(does_), HasSubstr("aten::zero_"))));
    order(side_, first_);
  }
  (void)take_violations();
  {
    const Call call = make();
    for (const at::Tensor& x : call.reads)
      x.zero_();
    run(call, /*ordered=*/true);
    order(side_, first_);
  }
  EXPECT_THAT(take_violations(), IsEmpty());
}

TEST_P(PluginKernels, AreWaitedForByWhatReadsTheirResults) {
  const Call call = make();
  run(call, /*ordered=*/true);
  EXPECT_THAT(take_violations(), IsEmpty());
  for (const at::Tensor& x : call.writes) {
    (void)(x + 1);
    EXPECT_THAT(take_violations(),
                Contains(HasSubstr("reads what " + std::string(GetParam().name) + " on stream")));
  }
  order(side_, first_);
}

TEST_P(PluginKernels, KeepTheirOperandsOnlyWithRecordStream) {
  for (const bool recorded : {false, true}) {
    bool waits = false;
    {
      const Call call = make();
      waits = call.waits;
      for (const auto* const all : {&call.reads, &call.writes, &call.others}) {
        for (const at::Tensor& x : *all) {
          if (recorded) x.record_stream(side_);
        }
      }
      run(call, /*ordered=*/true);
      (void)take_violations();
    }
    const auto given_back =
        Contains(HasSubstr("gives back what " + std::string(GetParam().name) + " on stream"));
    if (recorded || waits)
      EXPECT_THAT(take_violations(), Not(given_back));
    else
      EXPECT_THAT(take_violations(), given_back);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         PluginKernels,
                         ::testing::ValuesIn(kernel_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(Streams, LetKernelsTouchOnlyWhatTheirOperationNames) {
  const at::Tensor named = made(), read = made(), other = made();
  float value = 0.0F;
  {
    const ScopedKernels scope("a kernel", {read}, {named});
    const at::Tensor inner = at::empty({4}, at::device(device_));
    with_own_memory([&] {
      value = *read.const_data_ptr<float>();
      *named.data_ptr<float>() = value + 1;
      *inner.data_ptr<float>() = value;
    });
    EXPECT_DEATH(with_own_memory([&] { *read.data_ptr<float>() = 1; }), "");
    EXPECT_DEATH(with_own_memory([&] { value = *other.const_data_ptr<float>(); }), "");
  }
  EXPECT_EQ(value, 2.0F);
  EXPECT_EQ(named[0].item<float>(), 3.0F);
  EXPECT_DEATH(with_own_memory([&] { value = *read.const_data_ptr<float>(); }), "");
}

}  // namespace
}  // namespace tessera::test
