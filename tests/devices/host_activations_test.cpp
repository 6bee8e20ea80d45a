// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Activations in the memory of a device's host: their bits, the order of their copies, and that
// nobody waits for them.
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "devices/simulated_gpu.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tessera/base/files.h"
#include "tessera/memory/tiers/tier.h"
#include "tessera/parallel/activation_store.h"
#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

using test::simulated_gpu;
using test::simulated_work;
using test::take_violations;
using testing::HasSubstr;
using testing::IsEmpty;

/// A tensor on the device, computed there.
at::Tensor computed(const at::Tensor& host) {
  return on_device(host, simulated_gpu()) + 0;
}

/// Writes memory of the device over and over, as a computation does that goes on.
void compute_on(std::int64_t numel) {
  for (int i = 0; i < 3; ++i)
    (void)at::full({numel}, -1.0, at::device(simulated_gpu()));
}

/// A step with as many blocks as there are tensors: puts all, then takes them in reverse.
void step(ActivationStore& store, const std::vector<at::Tensor>& inputs) {
  std::vector<ActivationStore::Number> numbers;
  for (const at::Tensor& input : inputs) {
    numbers.push_back(store.put(computed(input)));
    compute_on(input.numel());
  }
  for (std::size_t b = numbers.size(); b-- > 0;) {
    const at::Tensor back = store.take(numbers[b]);
    if (b > 0) store.fetch(numbers[b - 1]);
    EXPECT_EQ(back.strides(), inputs[b].strides());
    EXPECT_TRUE((back + 0).cpu().equal(inputs[b]));
    compute_on(inputs[b].numel());
  }
}

std::vector<at::Tensor> some_inputs(int count) {
  std::vector<at::Tensor> out;
  for (int i = 0; i < count; ++i)
    out.push_back(at::arange(i, i + 24, at::kFloat).view({4, 6}));
  return out;
}

class HostActivations : public ::testing::Test {
 protected:
  void SetUp() override {
    c10::impl::getDeviceGuardImpl(simulated_gpu().type())->setDevice(simulated_gpu());
    (void)take_violations();
  }
  void TearDown() override { (void)take_violations(); }
};

TEST_F(HostActivations, ComeBackInOrderAndNobodyWaits) {
  for (const int buffers : {1, 2, 7}) {
    const auto store = activations_on_host(simulated_gpu(), buffers);
    const std::int64_t waits = simulated_work().host_waits;
    std::vector<ActivationStore::Number> numbers;
    for (int round = 0; round < 3; ++round) {
      for (const at::Tensor& input : some_inputs(5)) {
        numbers.push_back(store->put(computed(input)));
        compute_on(24);
      }
      for (std::size_t b = numbers.size(); b-- > 0;) {
        const at::Tensor back = store->take(numbers[b]);
        if (b > 0) store->fetch(numbers[b - 1]);
        (void)(back + 1);
      }
      numbers.clear();
    }
    EXPECT_EQ(simulated_work().host_waits, waits);
    step(*store, some_inputs(5));
    EXPECT_THAT(take_violations(), IsEmpty());
  }
}

TEST_F(HostActivations, HaveTheirBitsInAnyOrderAndSizeAlsoOnADisk) {
  const files::TempDir dir;
  for (const bool on_disk : {false, true}) {
    for (const int buffers : {1, 2, 5}) {
      const auto tier =
          memory::tiers().get("disk")({.folder = dir.path().string(), .block_bytes = 4096});
      const auto store = activations_on_host(
          simulated_gpu(), buffers, on_disk ? activations_in(*tier, buffers) : nullptr);
      std::mt19937 random(7);
      std::map<ActivationStore::Number, at::Tensor> kept;
      for (int i = 0; i < 80; ++i) {
        if (random() % 2 == 0 || kept.empty()) {
          const auto rows = static_cast<std::int64_t>(1 + random() % (i < 40 ? 5 : 40));
          at::Tensor tensor = at::rand({rows, 6, 70});
          if (random() % 2 == 0) tensor = tensor.to(at::kBFloat16);
          kept.emplace(store->put(computed(tensor)), tensor);
        } else {
          const auto any =
              std::next(kept.begin(), static_cast<std::ptrdiff_t>(random() % kept.size()));
          if (random() % 2 == 0) store->fetch(any->first);
          EXPECT_TRUE(store->take(any->first).cpu().equal(any->second));
          kept.erase(any);
        }
      }
      EXPECT_EQ(tier->use().written_bytes > 0, on_disk);
      EXPECT_THAT(take_violations(), IsEmpty());
    }
  }
}

// ---- what the mechanism cannot do without

std::vector<std::string> violations_without(test::Forgotten what) {
  const test::ScopedForgotten forgotten(what);
  const auto store = activations_on_host(simulated_gpu(), 1);
  std::vector<ActivationStore::Number> numbers;
  for (int round = 0; round < 2; ++round) {
    for (const at::Tensor& input : some_inputs(3))
      numbers.push_back(store->put(computed(input)));
    for (; !numbers.empty(); numbers.pop_back())
      (void)(store->take(numbers.back()) + 0);
  }
  return take_violations();
}

TEST_F(HostActivations, AreFoundOutIfTheComputationDoesNotWait) {
  const std::vector<std::string> found = violations_without(test::Forgotten::WaitsOfComputation);
  // Memory that is still copied down is freed, and values are read before they have come back.
  EXPECT_THAT(found, testing::Contains(HasSubstr("gives back what a copy to the host on")));
  EXPECT_THAT(found, testing::Contains(HasSubstr("reads what a copy to the device on")));
}

TEST_F(HostActivations, AreFoundOutIfTheCopiesDoNotWait) {
  const std::vector<std::string> found = violations_without(test::Forgotten::WaitsOfOthers);
  EXPECT_THAT(found, testing::Contains(HasSubstr("a copy to the host on")));
  EXPECT_THAT(found,
              testing::Contains(HasSubstr("reads pinned memory without waiting for the copy")));
  EXPECT_THAT(found, testing::Contains(HasSubstr("writes over pinned memory without waiting")));
}

}  // namespace
}  // namespace tessera::parallel
