// SPDX-License-Identifier: Apache-2.0
// The properties of objectives by which the rest of the program chooses.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/models/objective.h"

namespace tessera::models {
namespace {

// Whoever registers an objective says what its head gives, or under which other objective its
// models are saved; the parts of the program that ask for traits would otherwise pass it over.
TEST(ObjectiveTraits, AreKnownOfEveryObjective) {
  for (const std::string& name : objectives().names())
    EXPECT_NE(traits_of(name).predicts, Predicts::Other) << name;
}

TEST(ObjectiveTraits, OfAnObjectiveSavedAsAnotherAreThoseOfItsHeadAndNotOfItsLoss) {
  const std::vector<std::string> described = objective_traits().names();
  for (const std::string& name : kept_objectives().names()) {
    // One that says more of itself, as the loss with weights of tokens does.
    if (std::ranges::find(described, name) != described.end()) continue;
    const ObjectiveTraits own = traits_of(name), kept = traits_of(kept_objectives().get(name).name);

    EXPECT_EQ(own.predicts, kept.predicts) << name;
    EXPECT_FALSE(own.has_perplexity || own.distills) << name;
    EXPECT_EQ(continues_texts(name), continues_texts(kept_objectives().get(name).name)) << name;
  }
}

TEST(ObjectiveTraits, OfAnObjectiveOfAProgramAreUnknown) {
  EXPECT_EQ(traits_of("of a program").predicts, Predicts::Other);
  EXPECT_FALSE(continues_texts("of a program") || has_new_head("of a program"));
}

}  // namespace
}  // namespace tessera::models
