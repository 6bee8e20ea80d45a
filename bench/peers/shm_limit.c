// SPDX-License-Identifier: Apache-2.0
/* Limit for a two-process collective on one machine: two forked processes share POSIX-style shared memory
 * (anonymous MAP_SHARED) holding both send buffers; no staging copies.
 *   allreduce: each process sums half of the two inputs and writes the sum to both outputs
 *   reduce_scatter: each process sums its half into its own output
 *   allgather: each process copies both halves into its own full output
 *   sendrecv: each process copies the other's buffer into its own (both ways at once)
 * How to run: gcc -O3 -march=native shm_limit.c -o shm_limit && ./shm_limit [reps=9]
 * Prints one JSON line per (op,size): seconds median, and algorithm bandwidth GB/s = payload bytes / time
 * (payload = the full vector for allreduce, reduce_scatter input, allgather output, one message for sendrecv). */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+1e-9*t.tv_nsec;}
static int cmp(const void*a,const void*b){double x=*(double*)a,y=*(double*)b;return (x>y)-(x<y);}
static atomic_int *bar;
static int sense=0;
static void barrier(void){int s=(sense^=1);if(atomic_fetch_add(&bar[0],1)==1){atomic_store(&bar[0],0);atomic_store(&bar[16],s);}else while(atomic_load(&bar[16])!=s)__builtin_ia32_pause();}
int main(int argc,char**argv){
  int reps=argc>1?atoi(argv[1]):9; size_t max=256u<<20;
  bar=mmap(0,4096,PROT_READ|PROT_WRITE,MAP_SHARED|MAP_ANONYMOUS,-1,0); memset((void*)bar,0,4096);
  float*in[2],*out[2];
  for(int r=0;r<2;r++){in[r]=mmap(0,max,PROT_READ|PROT_WRITE,MAP_SHARED|MAP_ANONYMOUS,-1,0);out[r]=mmap(0,max,PROT_READ|PROT_WRITE,MAP_SHARED|MAP_ANONYMOUS,-1,0);}
  int me=fork()?0:1; cpu_set_t cs;CPU_ZERO(&cs);CPU_SET(me,&cs);sched_setaffinity(0,sizeof cs,&cs);
  for(size_t i=0;i<max/4;i++){in[me][i]=me+1;out[me][i]=0;}
  const char*ops[4]={"allreduce","reduce_scatter","allgather","sendrecv"}; size_t sizes[3]={1u<<20,16u<<20,256u<<20};
  for(int op=0;op<4;op++)for(int s=0;s<3;s++){
    size_t n=sizes[s]/4,h=n/2,lo=me*h,hi=lo+h; double t[64];
    int k=sizes[s]<=(1u<<20)?200:sizes[s]<=(16u<<20)?20:1;
    for(int r=-1;r<reps;r++){
      barrier();double t0=now();
      for(int q=0;q<k;q++){
        float*A=in[0],*B=in[1],*O=out[0],*P=out[1],*M=out[me],*X=in[!me];
        if(op==0)for(size_t i=lo;i<hi;i++){float v=A[i]+B[i];O[i]=v;P[i]=v;}
        else if(op==1)for(size_t i=lo;i<hi;i++)M[i-lo]=A[i]+B[i];
        else if(op==2){memcpy(M,A,h*4);memcpy(M+h,B,h*4);}
        else memcpy(M,X,n*4);
        barrier();
      }
      if(r>=0)t[r]=(now()-t0)/k;
    }
    if(op==0&&out[me][n-1]!=3.0f){fprintf(stderr,"wrong sum\n");return 1;}
    qsort(t,reps,8,cmp);
    if(!me){printf("{\"what\":\"shm_limit\",\"op\":\"%s\",\"mb\":%zu,\"s\":%.6f,\"gbs\":%.2f,\"best\":%.2f}\n",ops[op],sizes[s]>>20,t[reps/2],sizes[s]/t[reps/2]/1e9,sizes[s]/t[0]/1e9);fflush(stdout);}
  }
  if(!me)wait(0);
  return 0;
}
