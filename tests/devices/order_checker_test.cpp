// SPDX-License-Identifier: Apache-2.0
// The simulated GPU reports work that nothing has put into order, and only that.
#include "devices/order_checker.h"

#include "devices/two_streams.h"
#include <gmock/gmock.h>

namespace tessera::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(Streams, NeedAnEventBetweenAWriteAndARead) {
  const at::Tensor x = made();
  on_side([&] { (void)(x + 1); });
  EXPECT_THAT(take_violations(),
              ElementsAre(testing::AllOf(HasSubstr("aten::add"), HasSubstr("aten::mul"))));

  order(first_, side_);
  on_side([&] { (void)(x + 1); });
  order(side_, first_);
  EXPECT_THAT(take_violations(), IsEmpty());
}

TEST_F(Streams, NeedAnEventThatIsRecordedAfterTheWrite) {
  at::Tensor x = made();
  c10::Event event(device_.type());
  event.record(first_);
  x.mul_(3);
  event.block(side_);
  on_side([&] { (void)(x + 1); });
  EXPECT_THAT(take_violations(), testing::SizeIs(1));
}

TEST_F(Streams, NeedAnEventBetweenAReadAndAWrite) {
  at::Tensor x = made();
  order(first_, side_);
  on_side([&] { (void)(x + 1); });
  x.zero_();
  EXPECT_THAT(take_violations(), ElementsAre(HasSubstr("writes over what aten::add")));
}

TEST_F(Streams, MayWriteDifferentPartsOfATensor) {
  const at::Tensor x = made();
  order(first_, side_);
  on_side([&] { x.narrow(0, 0, 500).add_(1); });
  x.narrow(0, 500, 500).add_(1);
  EXPECT_THAT(take_violations(), IsEmpty());
  x.narrow(0, 499, 1).add_(1);
  EXPECT_THAT(take_violations(), testing::SizeIs(2));
  order(side_, first_);
}

TEST_F(Streams, KeepMemoryThatAnotherStreamReads) {
  for (const bool kept : {false, true}) {
    {
      at::Tensor x = made();
      order(first_, side_);
      if (kept) x.record_stream(side_);
      on_side([&] { (void)(x + 1); });
    }
    EXPECT_THAT(take_violations(), testing::SizeIs(kept ? 0 : 1));
  }
}

TEST_F(Streams, DeliverACopyToPinnedMemoryWhenTheHostWaits) {
  const at::Tensor x = made(), host = pinned();
  host.copy_(x, /*non_blocking=*/true);
  EXPECT_NE(host[0].item<float>(), 2.0F);
  guard_.synchronizeStream(first_);
  EXPECT_EQ(host[0].item<float>(), 2.0F);

  const std::int64_t waits = simulated_work().host_waits,
                     pageable = simulated_work().pageable_copies;
  at::ones({1000}).copy_(x, /*non_blocking=*/true);
  EXPECT_EQ(simulated_work().host_waits, waits + 1);
  EXPECT_EQ(simulated_work().pageable_copies, pageable + 1);
}

TEST_F(Streams, ReportAPinnedSourceThatChangesWhileItIsCopied) {
  for (const bool waits : {true, false}) {
    const at::Tensor host = pinned(), x = at::empty({1000}, at::device(device_));
    x.copy_(host, /*non_blocking=*/true);
    if (waits) guard_.synchronizeStream(first_);
    host.fill_(7);
    guard_.synchronizeStream(first_);
    EXPECT_THAT(take_violations(), testing::SizeIs(waits ? 0 : 1));
  }
}

TEST_F(Streams, FollowWhatTheHostHasWaitedFor) {
  const at::Tensor x = made();
  const at::Tensor value = x.sum();
  (void)value.item<float>();  // the host waits
  on_side([&] { (void)(x + 1); });
  EXPECT_THAT(take_violations(), IsEmpty());
}

}  // namespace
}  // namespace tessera::test
