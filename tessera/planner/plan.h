// SPDX-License-Identifier: Apache-2.0
// A plan: everything that a training needs, checked and with every number resolved, as constant
// parts. A variation of a plan is another plan: with(plan, part).
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/inputs.h"
#include "tessera/config/json.h"
#include "tessera/mesh/mesh.h"

namespace tessera::parallel {
struct Layout;
}

namespace tessera::planner {

struct Course;
struct DataPlan;
struct MemoryEstimate;
struct ModelPlan;
struct Needs;
struct Recipe;
struct RunPlan;

/// The parts from which a plan is made.
struct PlanParts;

/// Made by make_plan() before any rank starts. A copy costs as much as nine shared pointers, and
/// nothing that it refers to ever changes, so that threads and processes can share it. Each part is
/// declared in a header of its own, which its readers include.
class Plan {
 public:
  explicit Plan(PlanParts parts);

  /// How the training is divided over ranks (parallel/layout.h).
  [[nodiscard]] const parallel::Layout& layout() const { return *layout_; }
  [[nodiscard]] const ModelPlan& model() const { return *model_; }
  [[nodiscard]] const DataPlan& data() const { return *data_; }
  /// The computation of the training (recipe.h).
  [[nodiscard]] const Recipe& recipe() const { return *recipe_; }
  /// The folder of the run, and its checkpoints and printing (run_plan.h).
  [[nodiscard]] const RunPlan& run() const { return *run_; }
  /// config.json of the run folder: every key with its value.
  [[nodiscard]] const json::Value& resolved() const { return *resolved_; }
  /// Notes for the user, shown once: keys without an effect, oversubscribed cores.
  [[nodiscard]] const std::vector<std::string>& notes() const { return *notes_; }
  /// The memory that a rank needs besides the model (memory.h); nothing before place().
  [[nodiscard]] const Needs& needs() const { return *needs_; }
  /// The files that decide the result, apart from the data.
  [[nodiscard]] const std::vector<Input>& inputs() const { return *inputs_; }

  /// Layout::mesh(), and the number of its ranks.
  [[nodiscard]] mesh::Mesh mesh() const;
  [[nodiscard]] int ranks() const;

  /// The same plan with another part, of the same stage: `Part` is one of the types above, or
  /// that of resolved() or inputs().
  template <std::derived_from<Plan> P, class Part>
  friend P with(P plan, Part part);
  /// The same plan with more notes.
  template <std::derived_from<Plan> P>
  friend P with_notes(P plan, std::vector<std::string> notes);

 protected:
  void set(parallel::Layout layout);
  void set(ModelPlan model);
  void set(DataPlan data);
  void set(Recipe recipe);
  void set(RunPlan run);
  void set(json::Value resolved);
  void set(std::vector<Input> inputs);
  void set(Needs needs);
  void add(std::vector<std::string> notes);

 private:
  std::shared_ptr<const parallel::Layout> layout_;
  std::shared_ptr<const ModelPlan> model_;
  std::shared_ptr<const DataPlan> data_;
  std::shared_ptr<const Recipe> recipe_;
  std::shared_ptr<const RunPlan> run_;
  std::shared_ptr<const json::Value> resolved_;
  std::shared_ptr<const std::vector<std::string>> notes_;
  std::shared_ptr<const std::vector<Input>> inputs_;
  std::shared_ptr<const Needs> needs_;
};

/// A plan whose data is open: the tensors of its samples and the number of its steps are known.
/// Made by with_data() (with_data.h).
class PlanWithData : public Plan {
 public:
  PlanWithData(Plan plan, Course course);
  [[nodiscard]] const Course& course() const { return *course_; }

  template <std::derived_from<Plan> P, class Part>
  friend P with(P plan, Part part);

 protected:
  using Plan::set;
  void set(Course course);

 private:
  std::shared_ptr<const Course> course_;
};

/// A plan that fits into the memory of its hosts. Made by place() (place.h).
class PlacedPlan : public PlanWithData {
 public:
  PlacedPlan(PlanWithData plan, MemoryEstimate memory);
  /// The memory that a rank needs; empty if place() did not check the memory.
  [[nodiscard]] const MemoryEstimate& memory() const { return *memory_; }

  template <std::derived_from<Plan> P, class Part>
  friend P with(P plan, Part part);

 private:
  std::shared_ptr<const MemoryEstimate> memory_;
};

template <std::derived_from<Plan> P, class Part>
[[nodiscard]] P with(P plan, Part part) {
  plan.set(std::move(part));
  return plan;
}

template <std::derived_from<Plan> P>
[[nodiscard]] P with_notes(P plan, std::vector<std::string> notes) {
  plan.Plan::add(std::move(notes));
  return plan;
}

}  // namespace tessera::planner
