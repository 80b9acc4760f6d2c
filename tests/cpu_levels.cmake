# The tests of kernels, products, quantization and training once more at lower levels of STRETTO_CPU_LEVEL: what passes on a
# processor with AVX-512 must also pass with AVX2 alone, and without vector instructions. One process for each program and
# level. OpenBLAS takes no notice of the level: OPENBLAS_CORETYPE names a processor of that level.
function(add_level_tests program level core)
  list(JOIN ARGN ":" filter)
  add_test(NAME levels.${level}.${program} COMMAND ${program} --gtest_brief=1 --gtest_filter=${filter})
  set_tests_properties(levels.${level}.${program} PROPERTIES LABELS levels TIMEOUT 300
    FAIL_REGULAR_EXPRESSION "0 tests from 0 test suites ran" # a filter that no test has any more
    ENVIRONMENT "STRETTO_CPU_LEVEL=${level};OPENBLAS_CORETYPE=${core}")
endfunction()

set(kernel_cases AdamW.* Attention.* *AttentionSizes*sequence_130* CrossEntropy.* Softmax.* Convert.* ElementWise.* Sums.*
  Embedding.* Gelu.* GeluErf.* SiluGate.* LayerNorm.* RmsNorm.* HeadNorm.* Rotary.* Quantize.* Copy.* Divide.* Multiply.* Reduce.* ReduceAll.* SGD.* SmallProduct.* GemmArguments.* Types/Gemm.*
  LinearArguments.* Types/Linear.* *InF16.*)
set(parity_cases DataByTensor/Parity.*/1x2 DataByTensor/Parity.*/2x2 Bf16.*)
# Products and attention in bf16 on a processor that has the instructions for bf16, but no AMX.
add_test(NAME levels.bf16_without_amx.device_tests COMMAND device_tests --gtest_brief=1 --gtest_filter=*Attention*:*Gemm*:*Linear*)
set_tests_properties(levels.bf16_without_amx.device_tests PROPERTIES LABELS levels TIMEOUT 300 ENVIRONMENT "DNNL_MAX_CPU_ISA=AVX512_CORE_BF16")
foreach(level avx2:Haswell baseline:Core2)
  string(REPLACE ":" ";" level ${level})
  add_level_tests(device_tests ${level} ${kernel_cases})
  add_level_tests(layers_tests ${level} *)
  add_level_tests(collectives_tests ${level} Quantized.* *QuantizationError*)
  if(TARGET parity_tests)
    add_level_tests(parity_tests ${level} ${parity_cases})
    add_level_tests(reference_tests ${level} *)
  endif()
endforeach()
