// SPDX-License-Identifier: Apache-2.0
// A small model on a device whose memory the host must not access: layers, their backward and their
// loss use only the kernels of the tensors' device.
#include "devices/simulated_gpu.h"

#include <memory>
#include <thread>
#include <vector>

#include "support/test_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/memory/ledger.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/aten/backend.h"

namespace tessera::nn {
namespace {

using test::relative_error;
using test::simulated_gpu;
using test::TestParam;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat) * 0.3;
}

class NoBlock final : public Block {
  void declare(Params&) override {}
  Outcome forward(Flow, const Batch&, StepContext&) override { return {}; }
};

/// A transformer of one layer with dropout, 32 channels, 4 heads and 50 tokens.
class Model {
 public:
  explicit Model(at::Device device) : device_(device) {
    for (const at::IntArrayRef sizes : std::vector<std::vector<std::int64_t>>{
             {50, 32}, {32}, {32}, {96, 32}, {96}, {32, 32}, {32}, {128, 32}, {32, 64}})
      params_.push_back(std::make_unique<TestParam>(random(sizes, params_.size()).to(device)));
  }

  /// The sum of the losses of one batch, whose gradients are in the parameters'.
  double step(const at::Tensor& ids, const at::Tensor& labels) {
    StepContext context(Mode::Train, 7);
    NoBlock block;
    const ops::DropoutKey key = {.p = 0.1, .key = 11, .sample_ids = {0, 1}};
    const Param* const bias = &p(4);
    const at::Tensor x = embedding(ids.to(device_), p(0), context);
    const at::Tensor n = layer_norm(x, p(1), p(2), 1e-5, context);
    const auto heads = split_heads(linear(n, p(3), bias, context), 3, 4);
    const ops::RotaryTable turns = ops::rotary_table(at::arange(9).unsqueeze(0).to(device_),
                                                     ops::rotary_frequencies(8, 10000.0));
    const at::Tensor y = nn::attention(nn::rotary(heads[0], turns),
                                       nn::rotary(heads[1], turns),
                                       heads[2],
                                       {.dropout = key},
                                       block,
                                       context);
    const at::Tensor branch = linear(merge_heads(y), p(5), nullptr, context);
    const Normed normed = residual_rms_norm(x, branch, key, p(6), 1e-5, context);
    const at::Tensor up =
        nn::gated(linear(normed.normed_BTC, p(7), nullptr, context), ops::Activation::Silu);
    const at::Tensor out = nn::add_dropout(normed.x_BTC, linear(up, p(8), nullptr, context), key);
    const VocabLoss loss = vocab_loss(out, p(0), labels.to(device_), 0.1, context);
    loss.sum.backward();
    return loss.sum.item<double>();
  }
  [[nodiscard]] std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> out;
    for (const auto& param : params_)
      out.push_back(param->grad().cpu());
    return out;
  }

 private:
  [[nodiscard]] const TestParam& p(std::size_t i) const { return *params_[i]; }
  at::Device device_;
  std::vector<std::unique_ptr<TestParam>> params_;
};

TEST(SimulatedGpu, EndsAProcessThatReadsItsMemoryFromTheHost) {
  const at::Tensor x = at::ones({3}).to(simulated_gpu());
  EXPECT_EQ(x.sum().item<float>(), 3.0F);
  EXPECT_DEATH(
      {
        volatile float value = *static_cast<const float*>(x.const_data_ptr());
        (void)value;
      },
      "");
}

TEST(SimulatedGpu, GivesTheLossAndGradientsOfTheCpuWithoutAHostAccess) {
  const at::Tensor ids = at::arange(18).view({2, 9}) * 2, labels = at::arange(18).view({2, 9}) + 20;
  Model ours(simulated_gpu()), reference(at::kCPU);

  const double loss = ours.step(ids, labels), expected = reference.step(ids, labels);

  EXPECT_NEAR(loss, expected, 1e-5 * expected);
  const auto got = ours.gradients(), wanted = reference.gradients();
  for (std::size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE("parameter " + std::to_string(i));
    EXPECT_LT(relative_error(got[i], wanted[i]), 2e-5);
  }
}

/// y = x; its backward reports the thread and the ledger with which it runs.
struct ProbeNode : torch::autograd::Function<ProbeNode> {
  struct Seen {
    std::thread::id thread;
    const memory::Ledger* ledger = nullptr;
  };
  static at::Tensor forward(detail::AutogradContext* node, const at::Tensor& x, Seen* seen) {
    detail::keep(node, seen);
    return x.clone();
  }
  static detail::variable_list backward(detail::AutogradContext* node,
                                        const detail::variable_list& grads) {
    *detail::kept<Seen*>(node) = {std::this_thread::get_id(), &memory::current_ledger()};
    return {grads[0], {}};
  }
};

TEST(SimulatedGpu, RunsBackwardOnAThreadOfItsOwnWithTheLedgerOfTheRank) {
  memory::Ledger ledger;
  const memory::ScopedLedger scope(ledger);
  const at::Tensor x = at::ones({3}).to(simulated_gpu()).requires_grad_();
  ProbeNode::Seen seen;

  detail::apply<ProbeNode>(x, &seen).sum().backward();

  EXPECT_NE(seen.thread, std::this_thread::get_id());
  EXPECT_EQ(seen.ledger, &ledger);
}

}  // namespace
}  // namespace tessera::nn
