// SPDX-License-Identifier: Apache-2.0
/* STREAM-style memory bandwidth: copy, triad (a = b + s*c), triad with non-temporal stores, a read-only sum, and an
 * Adam-shaped pass (read p,g,m,v; write p,m,v: 28 bytes per parameter).
 * How to run:  gcc -O3 -march=native -ffast-math -mprefer-vector-width=512 -fopenmp stream.c -o stream -lm && OMP_NUM_THREADS=2 ./stream [million_floats=100] [reps=7]
 * Prints one JSON line, GB/s (medians and best); bytes counted without write-allocate traffic (STREAM's rule). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <math.h>
#include <immintrin.h>
#include <omp.h>
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+1e-9*t.tv_nsec;}
static int cmp(const void*a,const void*b){double x=*(double*)a,y=*(double*)b;return (x>y)-(x<y);}
int main(int argc,char**argv){
  long n=(argc>1?atol(argv[1]):100)*1000000L; int reps=argc>2?atoi(argv[2]):7;
  n&=~1023L;
  float *a=aligned_alloc(4096,n*4),*b=aligned_alloc(4096,n*4),*c=aligned_alloc(4096,n*4),*d=aligned_alloc(4096,n*4);
  #pragma omp parallel for schedule(static)
  for(long i=0;i<n;i++){a[i]=1;b[i]=2e-3f;c[i]=0;d[i]=1e-3f;}
  double t[5][64]; volatile float sink=0;
  for(int r=0;r<reps;r++){
    double t0=now();
    #pragma omp parallel for simd schedule(static)
    for(long i=0;i<n;i++) c[i]=a[i];
    t[0][r]=now()-t0; t0=now();
    #pragma omp parallel for simd schedule(static)
    for(long i=0;i<n;i++) a[i]=b[i]+3.0f*c[i];
    t[1][r]=now()-t0; t0=now();
#ifdef __AVX512F__
    #pragma omp parallel for schedule(static)
    for(long i=0;i<n;i+=16) _mm512_stream_ps(a+i,_mm512_fmadd_ps(_mm512_set1_ps(3.0f),_mm512_load_ps(c+i),_mm512_load_ps(b+i)));
#endif
    t[2][r]=now()-t0; t0=now();
    /* a=p b=g c=m d=v */
    #pragma omp parallel for simd schedule(static)
    for(long i=0;i<n;i++){
      float g=b[i],m=0.9f*c[i]+0.1f*g,v=0.95f*d[i]+0.05f*g*g;
      c[i]=m; d[i]=v; a[i]=a[i]*(1-6e-5f)-6e-4f*m/(sqrtf(v)+1e-8f);
    }
    t[3][r]=now()-t0; t0=now();
    float acc=0;
    #pragma omp parallel for simd schedule(static) reduction(+:acc)
    for(long i=0;i<n;i++) acc+=b[i];
    sink+=acc; t[4][r]=now()-t0;
  }
  double by[5]={8,12,12,28,4}; const char*nm[5]={"copy","triad","triad_nt","adam28","read"};
  printf("{\"what\":\"stream\",\"threads\":%d,\"mfloats\":%ld",omp_get_max_threads(),n/1000000);
  for(int k=0;k<5;k++){qsort(t[k],reps,8,cmp);printf(",\"%s_gbs\":%.2f,\"%s_best\":%.2f",nm[k],by[k]*n/t[k][reps/2]/1e9,nm[k],by[k]*n/t[k][0]/1e9);}
  qsort(t[3],reps,8,cmp);
  printf(",\"adam28_params_per_s\":%.4g,\"check\":%g}\n",n/t[3][reps/2],a[n/2]);
  return 0;
}
