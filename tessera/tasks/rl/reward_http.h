// SPDX-License-Identifier: Apache-2.0
// A model behind an HTTP endpoint that rewards completions, in the manner of OpenAI's chat
// completions, which vLLM, llama.cpp and others offer.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/tasks/rl/reward.h"

namespace tessera::tasks {

/// Returns why `url` cannot be asked; empty if it can. Valid: "http://host[:port]/path", and https.
std::string url_problem(const std::string& url);
/// Throws Error{Environment} if this host cannot ask an endpoint with these options: libcurl, the
/// variable with the token or the certificates are missing.
void check_endpoint(const HttpRewardOptions& options);

/// Asks the endpoint about several completions at a time. Threads: one at a time.
class RewardHttp {
 public:
  explicit RewardHttp(HttpRewardOptions options);
  /// Returns the first number in each answer, in the order of the completions. `poll` is called at
  /// least once a second. A question that fails or gets no answer in time is asked again
  /// options.retries times; then Error{Environment} is thrown, and Error{Data} if the last answer
  /// has no number. Both name the record.
  [[nodiscard]] std::vector<double> of(std::span<const Answer> answers,
                                       const std::function<void()>& poll = {}) const;
  /// Returns the body of the request about a completion, JSON.
  [[nodiscard]] std::string question(const Answer& answer) const;

 private:
  HttpRewardOptions options_;
};

}  // namespace tessera::tasks
