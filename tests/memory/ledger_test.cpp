// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/ledger.h"

#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::memory {
namespace {

std::size_t at(Tag tag) {
  return static_cast<std::size_t>(tag);
}

TEST(Ledger, SplitsByTagAndRemembersPeaks) {
  Ledger ledger;

  ledger.add(Tag::Parameters, 100);
  ledger.add(Tag::Gradients, 30);
  ledger.add(Tag::Gradients, -30);
  ledger.add(Tag::Optimizer, 10);

  const Usage usage = ledger.usage();
  EXPECT_EQ(usage.current[at(Tag::Parameters)], 100);
  EXPECT_EQ(usage.current[at(Tag::Gradients)], 0);
  EXPECT_EQ(usage.peak[at(Tag::Gradients)], 30);
  EXPECT_EQ(usage.total, 110);
  EXPECT_EQ(usage.total_peak, 130) << "of the sum, not the sum of peaks";
}

TEST(Ledger, ForgetsPeaksWhenAsked) {
  Ledger ledger;
  ledger.add(Tag::Activations, 50);
  ledger.add(Tag::Activations, -40);

  ledger.reset_peak();

  EXPECT_EQ(ledger.usage().total_peak, 10);
  EXPECT_EQ(ledger.usage().peak[at(Tag::Activations)], 10);
}

TEST(Ledger, CountsFromManyThreads) {
  Ledger ledger;
  std::vector<std::thread> threads;

  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const ScopedLedger scope(ledger);
      for (int k = 0; k < 10000; ++k)
        current_ledger().add(Tag::Other, 1);
    });
  }
  for (auto& thread : threads)
    thread.join();

  EXPECT_EQ(ledger.usage().total, 40000);
}

TEST(ScopedTag, IsActivationsByDefaultAndTheInnermostWins) {
  EXPECT_EQ(current_tag(), Tag::Activations);
  {
    const ScopedTag outer(Tag::Optimizer);
    {
      const ScopedTag inner(Tag::Gradients);
      EXPECT_EQ(current_tag(), Tag::Gradients);
    }
    EXPECT_EQ(current_tag(), Tag::Optimizer);
  }
  EXPECT_EQ(current_tag(), Tag::Activations);
}

TEST(ScopedLedger, BelongsToItsThread) {
  Ledger mine;
  const ScopedLedger scope(mine);
  Ledger* other = nullptr;

  std::thread([&] { other = &current_ledger(); }).join();

  EXPECT_EQ(&current_ledger(), &mine);
  EXPECT_NE(other, &mine);
}

TEST(Charge, IsTakenBackFromWhereItWasOpened) {
  Ledger first, second;
  Charge charge;
  {
    const ScopedLedger scope(first);
    charge = Charge::open(64, Tag::Parameters);
  }
  const ScopedLedger scope(second);
  const ScopedTag tag(Tag::Optimizer);

  EXPECT_EQ(first.usage().current[at(Tag::Parameters)], 64);
  charge.release();
  charge.release();

  EXPECT_EQ(first.usage().total, 0);
  EXPECT_EQ(second.usage().total, 0);
}

TEST(Charge, OutlivesItsLedger) {
  auto ledger = std::make_unique<Ledger>();
  Charge charge;
  {
    const ScopedLedger scope(*ledger);
    charge = Charge::open(64, Tag::Parameters);
  }

  ledger.reset();

  charge.release();  // the address sanitizer would object
}

TEST(TagNames, AreTheWordsOfReports) {
  EXPECT_EQ(name(Tag::Parameters), "parameters");
  EXPECT_EQ(name(Tag::GradientsInFlight), "gradients in flight");
  EXPECT_EQ(name(Tag::Other), "other");
}

}  // namespace
}  // namespace tessera::memory
