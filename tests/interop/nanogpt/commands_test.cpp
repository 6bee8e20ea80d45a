// SPDX-License-Identifier: Apache-2.0
// nanoGPT's settings become configurations.
#include <string>

#include "interop/command_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::interop {
namespace {

using testing::HasSubstr;

class NanoGptCommands : public CommandFolder {
 protected:
  void SetUp() override {
    CommandFolder::SetUp();
    write("data/owt/train.bin", std::string(4000, '\1'));
    write("data/owt/val.bin", std::string(4000, '\1'));
    write("data/chars/train.bin", "x");
    write("data/chars/meta.pkl", "x");
    write("data/chars/input.txt", "to be\n");
    write("config/train_x.py",
          "# a small model\nout_dir = 'out-x'\neval_interval = 250 # often\neval_iters = 20\n"
          "log_interval = 10\nalways_save_checkpoint = False\n\ndataset = 'owt'\n"
          "gradient_accumulation_steps = 5 * 2\nbatch_size = 4\nblock_size = 64\n\nn_layer = 2\n"
          "n_head = 4\nn_embd = 32\ndropout = 0.2\n\nlearning_rate = 1e-3\nmax_iters = 100\n"
          "lr_decay_iters = 100\nmin_lr = 1e-4\nbeta2 = 0.99\nwarmup_iters = 9\n");
  }
};

TEST_F(NanoGptCommands, ReadsItsFileAsLiterals) {
  const ForeignCommand command = read(
      "torchrun --standalone --nproc_per_node=2 train.py config/train_x.py --batch_size=8 "
      "--compile=False");
  EXPECT_EQ(command.program, "nanoGPT's train.py");
  EXPECT_EQ(command.ranks, 2);
  EXPECT_EQ(key(command, "gradient_accumulation_steps"), "5");
  EXPECT_EQ(key(command, "train_micro_batch_size_per_gpu"), "8");
  EXPECT_EQ(key(command, "model.num_layers"), "2");
  EXPECT_EQ(key(command, "model.dropout"), "0.2");
  EXPECT_EQ(key(command, "model.vocab_size"), "50304");
  EXPECT_EQ(key(command, "trainer.max_steps"), "101");
  EXPECT_EQ(key(command, "scheduler.params.lr_warmup_init"), "1e-04");
  EXPECT_EQ(key(command, "optimizer.params.betas"), "[0.9,0.99]");
  EXPECT_EQ(key(command, "optimizer.params.weight_decay"), "0.1");
  EXPECT_EQ(key(command, "bf16.enabled"), "true");
  EXPECT_EQ(key(command, "data.validation"), "\"data/owt/val.bin\"");
  EXPECT_EQ(key(command, "checkpoint.best"), "true");
  EXPECT_EQ(key(command, "run.dir"), "\"out-x\"");
}

TEST_F(NanoGptCommands, ReadsTheTextOfCharacters) {
  const ForeignCommand command =
      read("python train.py config/train_x.py --dataset=chars --device=cpu --dtype=float16");
  EXPECT_EQ(key(command, "data.train"), "\"data/chars/input.txt\"");
  EXPECT_EQ(key(command, "fp16.enabled"), "none");
}

TEST_F(NanoGptCommands, IsNotEveryScriptOfThisName) {
  EXPECT_FALSE(knows_foreign_command(words("python train.py --lr 1")));
  EXPECT_TRUE(knows_foreign_command(words("python train.py config/train_gpt2.py")));
  EXPECT_TRUE(knows_foreign_command(words("python train.py --n_layer=4")));
}

TEST_F(NanoGptCommands, RefusesWithPlaces) {
  write("config/bad.py", "n_layer = 2\nn_head = open('x')\n");
  EXPECT_THAT(refusal("python train.py config/bad.py"), HasSubstr("config/bad.py:2:"));
  write("config/bad.py", "n_layers = 2\n");
  EXPECT_THAT(refusal("python train.py config/bad.py"), HasSubstr("did you mean n_layer?"));
  EXPECT_THAT(refusal("python train.py config/train_x.py --dataset=none-such"),
              HasSubstr("no data/none-such"));
  EXPECT_THAT(refusal("torchrun --nproc_per_node 3 train.py config/train_x.py"),
              HasSubstr("not divisible by 3 ranks"));
  EXPECT_THAT(refusal("python train.py config/train_x.py --eval_only=True"),
              HasSubstr("tessera eval RUN"));
}

}  // namespace
}  // namespace tessera::interop
