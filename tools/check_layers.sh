#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A folder may include itself and any folder on a lower floor; siblings never include each other.
cd "$(dirname "$0")/.." || exit 2
floors=("base" "config mesh launch" "hosts memory text" "comm" "tensor" "ops" "nn losses optim data checkpoint transports"
        "models parallel" "tasks" "planner" "report interop predict" "engine" "rlhf tune api" "cli")
declare -A floor; for i in "${!floors[@]}"; do for d in ${floors[$i]}; do floor[$d]=$i; done; done
bad=0
while read -r from to file; do
  [[ $from == "$to" ]] || (( ${floor[$to]:-99} < ${floor[$from]:--1} )) ||
    { echo "$file includes tessera/$to, which is not a lower floor than tessera/$from"; bad=1; }
done < <(grep -rHoE '#include "tessera/[a-z]+/' tessera/*/ --include='*.h' --include='*.cpp' |
         sed -E 's|^(tessera/([a-z]+)/[^:]*):#include "tessera/([a-z]+)/|\2 \3 \1|')
# Floors that must work without libtorch do not include it.
if grep -rnE '#include <(ATen|c10|torch)/' tessera/{base,config,mesh,launch,hosts,comm,text,data,checkpoint,interop/{axolotl,bmtrain,deepspeed,launchers,llamafactory,llmc,megatron,nanogpt,tencentpretrain,torch,torchtitan,trl},interop/{command_meaning,command_members,command_words,dataset_names,export,foreign,foreign_command,foreign_flags,foreign_write,npy,option_page,option_table,option_values,short_forms,toml,weights,yaml}.*,interop/colossal/python_literal.*,interop/gguf/{blocks,file,layout,reader,rotary,splits,tokenizer,tokenizer_export}.*,interop/huggingface/{bitsandbytes,sentence_transformers}.*,interop/onnx/file.*} --include='*.h' --include='*.cpp'; then
  echo "these floors include no libtorch"; bad=1
fi
if grep -rn 'torch/torch\.h' tessera examples --include='*.h' --include='*.cpp'; then echo "torch/torch.h appears nowhere"; bad=1; fi
# The face of the library costs a program that includes it nothing.
if grep -nE '#include (<(ATen|c10|torch|fmt)/|"tessera/)' tessera/api.h | grep -v '"tessera/base/error.h"'; then
  echo "tessera/api.h includes the standard library and tessera/base/error.h alone"; bad=1
fi
# Compressed optimizers register themselves: the rest of the library does not include them.
if grep -rn '#include "tessera/parallel/compressed/' tessera --include='*.h' --include='*.cpp' |
    grep -v '^tessera/parallel/compressed/'; then
  echo "tessera/parallel/compressed is included by itself alone"; bad=1
fi
# A longer file has more than one purpose and should be split.
if git ls-files -co --exclude-standard 'tessera/*.h' 'tessera/*.cpp' 'tests/*.h' 'tests/*.cpp' 'examples/*.cpp' 'bench/*.cpp' |
    xargs wc -l | awk '$2 != "total" && $1 > 600 {print $2 " has " $1 " lines, 600 are allowed"; bad = 1} END {exit !bad}'; then
  bad=1
fi
# Parts of a plan are included by the sources that read them.
tools/includers.py --check || bad=1
# The build takes the sources of a floor and of its folders, no deeper.
deep=$(find tessera -mindepth 4 -name '*.cpp' | head -n 3)
if [[ -n $deep ]]; then echo "the build does not see sources this deep: $deep"; bad=1; fi
exit $bad
