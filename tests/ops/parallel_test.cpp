// SPDX-License-Identifier: Apache-2.0
// Kernels run on as many threads as the rank has, and give the same bits on any number.
#include <mutex>
#include <set>
#include <thread>

#include "ops/support.h"

#include "tessera/ops/activation.h"
#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/norm.h"

namespace tessera::ops {
namespace {

class Threads {
 public:
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_ = at::get_num_threads();
};

TEST(Parallel, RunsOnAllThreadsOfTheRank) {
  const Threads two(2);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  cpu::parallel(2, 1, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(end - begin, 1);
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(seen.size(), 2U);
}

/// Results of a kernel on one thread and on three.
template <class Fn>
void expect_same_on_any_number(Fn fn) {
  const auto on = [&](int threads) {
    const Threads here(threads);
    return fn();
  };
  const at::Tensor one = on(1);
  EXPECT_TRUE(same_bits(one, on(3)));
}

TEST(Parallel, GivesTheSameBitsOnAnyNumberOfThreads) {
  const at::Tensor x = random({200, 512}, 1), dy = random({200, 512}, 2), w = random({512}, 3);
  expect_same_on_any_number([&] { return layer_norm(x, w, w, 1e-5).y_NC; });
  expect_same_on_any_number([&] {
    const LayerNormOut out = layer_norm(x, w, w, 1e-5);
    const at::Tensor dw = at::empty({512}), db = at::empty({512});
    layer_norm_backward(dy, x, out.mean_N, out.rstd_N, w, dw, false, db, false);
    return at::cat({dw, db});
  });
  expect_same_on_any_number([&] { return activate_backward(dy, x, Activation::GeluTanh); });
  expect_same_on_any_number([&] {
    const at::Tensor db = at::empty({512});
    linear_bias_grad(dy, db, false);
    return db;
  });
  const at::Tensor labels = at::arange(200, at::kLong);
  expect_same_on_any_number([&] {
    const at::Tensor logits = x.clone();
    return at::cat({cross_entropy_(logits, labels, 0.1, true).dlogits_NV});
  });
}

}  // namespace
}  // namespace tessera::ops
