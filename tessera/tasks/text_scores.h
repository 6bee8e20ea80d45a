// SPDX-License-Identifier: Apache-2.0
// Scores how near texts that a model wrote come to those that were expected.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tasks/metrics.h"

namespace tessera::tasks {

/// A text that was written, and the one that was expected.
struct WrittenText {
  std::string written, expected;
};

/// ROUGE-1, ROUGE-2 and ROUGE-L: the F measure of common words, pairs of neighbouring words, and
/// of the longest common subsequence of words, from 0 to 1. Words are runs of a-z and 0-9 in lower
/// case, without a stemmer. Source: Lin 2004, "ROUGE: a package for automatic evaluation of
/// summaries"; details as in the package rouge_score 0.1.2.
struct Rouge {
  double rouge1 = 0, rouge2 = 0, rouge_l = 0;
};
/// Cost: the product of the numbers of words, of both at most `kMostRougeWords`; what follows is
/// left out.
Rouge rouge(const WrittenText& text);
inline constexpr std::size_t kMostRougeWords = 20000;

/// BLEU of all texts together, from 0 to 100: the geometric mean of the precisions of 1 to 4
/// words, each smoothed where it is 0 (method "exp"), times the brevity penalty; words as the
/// tokenizer 13a cuts them, in their own case. Source: Papineni et al. 2002, "BLEU"; Post 2018, "A
/// call for clarity in reporting BLEU scores"; details as in sacrebleu 2.6.
double bleu(const std::vector<WrittenText>& texts);

/// Names of the scores of texts.
inline constexpr std::array<std::string_view, 5> kTextScores = {
    "exact_match", "rouge1", "rouge2", "rougeL", "bleu"};
/// exact_match (the share of texts that are equal but for blanks around them), rouge1, rouge2,
/// rougeL (means), and bleu, in the order of kTextScores; of no texts nothing.
std::vector<NamedValue> text_scores(const std::vector<WrittenText>& texts);

}  // namespace tessera::tasks
