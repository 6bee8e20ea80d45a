// SPDX-License-Identifier: Apache-2.0
// The dropouts of a training step, by their places in the model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::nn {

/// While it exists, collects the dropouts that the blocks on this thread ask StepContext for. They
/// may not be nested.
class DropoutRecord {
 public:
  struct Place {
    std::string block, site;
    double p = 0.0;
  };
  DropoutRecord();
  ~DropoutRecord();
  DropoutRecord(const DropoutRecord&) = delete;
  DropoutRecord& operator=(const DropoutRecord&) = delete;
  /// Each place once, in the order of its first use.
  [[nodiscard]] const std::vector<Place>& places() const { return places_; }

  /// Adds the place to the record of this thread, if there is one.
  static void add(std::string_view block, std::string_view site, double p);

 private:
  std::vector<Place> places_;
};

}  // namespace tessera::nn
