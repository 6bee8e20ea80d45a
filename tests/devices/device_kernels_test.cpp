// SPDX-License-Identifier: Apache-2.0
// labels: slow
// The kernels of a device against those of the CPU: on a simulated GPU, or, with
// TESSERA_TEST_GPU=cuda, those of the plugin on GPU 0 of this host (tools/gpu_check.sh).
#include <string>
#include <tuple>
#include <vector>

#include "devices/device_world.h"
#include "ops/support.h"
#include "ops/updates.h"
#include <gtest/gtest.h>

#include "tessera/ops/attention.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/dropout.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/norm.h"

namespace tessera::ops {
namespace {

const at::Device& gpu() {
  static const at::Device device = test::enter_gpu(0);
  return device;
}
const Backend& cpu() {
  return *backends().get("cpu");
}

at::Tensor on_gpu(const at::Tensor& x) {
  return x.defined() ? x.to(gpu()) : x;
}

constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};

TEST(DeviceKernels, UpdateWeightsToTheBitsOfTheCpu) {
  for (const auto& [name, update] : all_updates()) {
    if (name == "factors of rows and columns") continue;  // its factors are memory of the host
    for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
      SCOPED_TRACE(name);
      const UpdatedRange ours(dtype, 2500, gpu()), wanted(dtype);
      update(backend(gpu()), ours);
      update(cpu(), wanted);
      for (std::size_t i = 0; i < wanted.all().size(); ++i)
        EXPECT_TRUE(same_bits(ours.all()[i].cpu(), wanted.all()[i])) << "result " << i;
    }
  }
}

TEST(DeviceKernels, DropTheSameElements) {
  const DropoutKey key = {.p = 0.3, .key = 11, .sample_ids = {7, 1000000007, 2}};
  for (const at::ScalarType dtype : kTypes) {
    const at::Tensor x = random({3, 40, 10}, 1, dtype);
    const at::Tensor wanted = at::empty_like(x), ours = on_gpu(at::empty_like(x));
    cpu().dropout(x, {}, key, wanted);
    backend(gpu()).dropout(on_gpu(x), {}, key, ours);
    EXPECT_TRUE(same_bits(ours.cpu(), wanted));
  }
}

TEST(DeviceKernels, MultiplyNormalizeAndAttendUpToRounding) {
  for (const at::ScalarType dtype : kTypes) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor x = random({24, 64}, 1, dtype), weight = random({48, 64}, 2, dtype),
                     bias = random({48}, 3, dtype), dy = random({24, 48}, 4, dtype);
    const at::Tensor q = random({2, 16, 4, 16}, 5, dtype).transpose(1, 2),
                     k = random({2, 16, 2, 16}, 6, dtype).transpose(1, 2);
    const at::Tensor channels = random({64}, 7, dtype) + 1.0,
                     labels = int64s({1, 5, 0, 23, kIgnoreLabel});
    const auto results = [&](const auto& here) {
      const Backend& on = backend(here(x).device());
      const at::Tensor dw = here(at::ones({48, 64})), y = here(at::empty_like(x)),
                       rstd = here(at::empty({24})), none;
      on.linear_weight_grad(here(dy), here(x), /*accumulate=*/true, 0.5F, dw);
      on.norm({here(x), here(channels), none, none, 1e-5, y, none, rstd, none});
      const AttentionOut out = on.attention(here(q), here(k), here(k), {});
      const AttentionGrads grads =
          on.attention_backward(here(q), here(q), here(k), here(k), out, {});
      const at::Tensor logits = here(random({5, 24}, 8) * 9);
      const at::Tensor loss = on.cross_entropy(logits, here(labels), 0.1, logits);
      return std::vector{on.linear(here(x), here(weight), here(bias), dtype),
                         on.linear_input_grad(here(dy), here(weight)),
                         dw,
                         y,
                         rstd,
                         out.y_BHTK,
                         out.saved,
                         grads.dq_BHTK,
                         grads.dk_BGSK,
                         grads.dv_BGSK,
                         loss,
                         logits};
    };
    const auto ours = results(on_gpu), wanted = results([](const at::Tensor&t) { return t; });
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      SCOPED_TRACE(i);
      expect_close(ours[i].cpu(), doubles(wanted[i]), 8 * epsilon(dtype) + 2e-5);
    }
  }
}

TEST(DeviceKernels, GiveTheSameBitsEachTime) {
  const at::Tensor q = on_gpu(random({2, 64, 4, 16}, 5, at::kBFloat16).transpose(1, 2)),
                   ids = on_gpu(int64s({4, 0, 4, 2, 4, 0, 9, 4})),
                   rows = on_gpu(random({8, 33}, 1, at::kBFloat16));
  std::vector<at::Tensor> first;
  for (int round = 0; round < 5; ++round) {
    const AttentionOut out = backend(gpu()).attention(q, q, q, {});
    const AttentionGrads d = backend(gpu()).attention_backward(q, q, q, q, out, {});
    const at::Tensor table = on_gpu(at::zeros({10, 33})), dw = on_gpu(at::zeros({33, 33}));
    backend(gpu()).embedding_grad(rows, ids, /*accumulate=*/true, table);
    backend(gpu()).linear_weight_grad(rows, rows, /*accumulate=*/true, 1.0F, dw);
    const std::vector<at::Tensor> made = {
        d.dq_BHTK.cpu(), d.dk_BGSK.cpu(), d.dv_BGSK.cpu(), table.cpu(), dw.cpu()};
    if (round == 0) first = made;
    for (std::size_t i = 0; i < made.size(); ++i)
      EXPECT_TRUE(same_bits(made[i], first[i])) << "result " << i << " of round " << round;
  }
}

}  // namespace
}  // namespace tessera::ops
