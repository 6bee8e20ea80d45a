// SPDX-License-Identifier: Apache-2.0
// libtorch runs the backward for tensors on a device on another thread. It then works with the
// ledger, the tag and the log of operations of the thread that made its node.
#include "tessera/nn/autograd.h"

#include <algorithm>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "tessera/memory/ledger.h"
#include "tessera/ops/activation.h"
#include "tessera/ops/op_log.h"

namespace tessera::nn {
namespace {

/// y = x, with a backward that reports the state that it runs with.
struct ProbeNode : torch::autograd::Function<ProbeNode> {
  static at::Tensor forward(detail::AutogradContext* node,
                            const at::Tensor& x,
                            const std::function<void()>& probe) {
    detail::keep(node, probe);
    return x.clone();
  }
  static detail::variable_list backward(detail::AutogradContext* node,
                                        const detail::variable_list& grads) {
    detail::kept<std::function<void()>>(node)();
    return {grads[0], {}};
  }
};

at::Tensor probed(const std::function<void()>& probe) {
  const at::Tensor x = at::ones({2}).requires_grad_();
  return detail::apply<ProbeNode>(x, probe).sum();
}

/// Runs the backward on another thread, as libtorch does for a device.
void backward_elsewhere(const at::Tensor& loss) {
  std::thread([&] { loss.backward(); }).join();
}

TEST(ThreadContext, ABackwardOnAnotherThreadChargesTheLedgerOfItsForward) {
  memory::Ledger ledger;
  const memory::Ledger* seen = nullptr;
  memory::Tag tag = memory::Tag::Other;
  memory::Charge charge;
  const memory::ScopedLedger scope(ledger);
  at::Tensor loss;
  {
    const memory::ScopedTag forward_tag(memory::Tag::Gradients);
    loss = probed([&] {
      seen = &memory::current_ledger();
      tag = memory::current_tag();
      charge = memory::Charge::open(64, memory::current_tag());
    });
  }

  backward_elsewhere(loss);

  EXPECT_EQ(seen, &ledger);
  EXPECT_EQ(tag, memory::Tag::Gradients);
  EXPECT_EQ(ledger.usage().current[static_cast<std::size_t>(memory::Tag::Gradients)], 64);
  charge.release();
}

TEST(ThreadContext, ABackwardOnAnotherThreadLeavesThatThreadAsItWas) {
  memory::Ledger ledger, other;
  at::Tensor loss;
  {
    const memory::ScopedLedger scope(ledger);
    loss = probed([] {});
  }
  const memory::Ledger* after = nullptr;
  memory::Tag tag = memory::Tag::Other;
  std::thread([&] {
    const memory::ScopedLedger scope(other);
    const memory::ScopedTag scoped(memory::Tag::Communication);
    loss.backward();
    after = &memory::current_ledger();
    tag = memory::current_tag();
  }).join();
  EXPECT_EQ(after, &other);
  EXPECT_EQ(tag, memory::Tag::Communication);
}

TEST(ThreadContext, ABackwardOnTheThreadOfItsForwardKeepsTheTagOfThatMoment) {
  memory::Tag tag = memory::Tag::Other;
  const at::Tensor loss = probed([&] { tag = memory::current_tag(); });
  {
    const memory::ScopedTag scoped(memory::Tag::GradientsInFlight);
    loss.backward();
  }
  EXPECT_EQ(tag, memory::Tag::GradientsInFlight);
}

TEST(ThreadContext, ABackwardOnAnotherThreadIsLoggedWithItsForward) {
  const ops::OpLog log;
  const at::Tensor x = at::ones({3});
  const at::Tensor loss = probed([&] { ops::activate(x, ops::Activation::Relu); });

  backward_elsewhere(loss);

  const auto rows = log.rows();
  EXPECT_TRUE(std::any_of(
      rows.begin(), rows.end(), [](const ops::OpRow& row) { return row.name == "activation"; }));
}

TEST(ThreadContext, ALogThatIsGoneIsNotWrittenTo) {
  const ops::OpLog* seen = nullptr;
  at::Tensor loss;
  {
    const ops::OpLog log;
    loss = probed([&] { seen = ops::OpLog::current(); });
    seen = &log;
  }
  backward_elsewhere(loss);
  EXPECT_EQ(seen, nullptr);
}

}  // namespace
}  // namespace tessera::nn
